"""Pair the fields of a modulax state with those of an optax state.

Both are read into the same form: a *scope* is a list of *parts*, one for each transformation that has a state.
Whatever only holds parts in order is dissolved: chains, optimizers, tuples. A container that runs its parts on
conditions of its own has them in a scope of its own, by the name of the field that holds it.

An optax state is read from the names of its arrays alone, because that is what orbax returns without a target: dicts
and lists instead of classes. Two parts correspond if they have fields of the same names, except for those in the tables
below. Where several do, those with the same keys above them are preferred, then those that come first.

Step counts are the exception: modulax counts in every optimizer, and optax in every transformation that needs it. A
count without a counterpart is paired with another one of the same scope.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.module import AbstractState
from ..tree._paths import Names, key_names, named_leaves
from ..tree._state import held, nesting_fields, one_level

COUNTERS = {"count", "count_m2", "step", "t"}
# A state with one of these fields counts something other than steps: losses, or mini-batches.
_OTHER_COUNTS = {"plateau_count", "grad_acc"}
# Fields of optax that have another name here.
_ALIASES = {"hyperparams": "hyperparameters", "t": "count"}
# Fields of optax that hold no state: hyperparameters, and what every step computes.
CONSTANTS = {"b1", "ns_coeffs", "skip_state"}
# Fields of modulax that optax does not have; their initial values are right for its states.
OURS = {"schedule_states", "skip_state", "skipped"}
# Whether the count is 0, in optax.
INITIAL = "is_initial_step"
# Fields of modulax that optax keeps among the parameters, and computes from them.
SLOW, AVERAGE = "slow", "x"
# The step count of `schedule_free`, which is 1 at the start in optax, and 0 or 1 here.
LEAD = "step_count"
# Fields with arrays of one element in optax where there are none here.
_FACTORS = {"v_row", "v_col", "v"}

_ONE_SIDED = CONSTANTS | OURS | COUNTERS | {INITIAL, SLOW, AVERAGE, "hyperparams_states"}


@dataclasses.dataclass
class Part:
    """The state of one transformation: where it is, its own arrays, and the scopes inside.

    Arrays are by field, then by their names within it. Scopes are by field, then by label where there are labels.
    """

    where: Names
    fields: dict[str, dict[Names, Names]] = dataclasses.field(default_factory=dict)
    scopes: dict[str, dict[str, list["Part"]]] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> set[str]:
        """The fields that the corresponding part has too."""
        own = {_ALIASES.get(name, name) for name in self.fields.keys() - _ONE_SIDED}
        return own - _FACTORS | {"v"} if own & _FACTORS else own

    @property
    def is_average(self) -> bool:
        """Whether this is the state of `schedule_free`."""
        return {LEAD, "z"} <= self.fields.keys()

    @property
    def only_counts(self) -> bool:
        """Whether there is nothing but counters, and fields that one side does not have."""
        return not self.kind and not self.scopes

    @property
    def counter(self) -> Names | None:
        """The name of the step count, if there is one."""
        fields = self.fields if _OTHER_COUNTS.isdisjoint(self.fields) else {}
        return next((fields[name][()] for name in ("count", "t", "step") if () in fields.get(name, ())), None)


@dataclasses.dataclass
class Pairs:
    """Which arrays correspond.

    Attributes:
        same: names of modulax and of optax that hold the same value. Of several for one name, the first one counts.
        initial: names of modulax and of optax: a count, and whether it is 0.
        constants: names of optax that hold no state.
        factors: names of optax that hold none if they have one element.
    """

    same: list[tuple[Names, Names]] = dataclasses.field(default_factory=list)
    initial: list[tuple[Names, Names]] = dataclasses.field(default_factory=list)
    constants: set[Names] = dataclasses.field(default_factory=set)
    factors: set[Names] = dataclasses.field(default_factory=set)


def every(scope: Iterable[Part]) -> Iterator[Part]:
    """Iterate over the parts of a scope and of all scopes inside."""
    for part in scope:
        yield part
        for labelled in part.scopes.values():
            for inner in labelled.values():
                yield from every(inner)


def our_scope(node: PyTree, where: Names) -> list[Part]:
    """Read a state of modulax."""
    if hasattr(node, "_fields"):  # of an optax transformation that was adapted
        return their_scope([where + names for names, _ in named_leaves(node)], where, [])
    children = one_level(node)[0]
    if not isinstance(node, AbstractState):
        return [part for key, child in children for part in our_scope(child, where + key_names(key))]
    part, dissolved = Part(where), list[Part]()
    fields = {f.name: f for f in dataclasses.fields(node)}
    for key, child in children:
        (name,) = key_names(key)
        below = (*where, name)
        if held(fields[name], child) != "states" and not (name == "inner_state" and _holds_states(child)):
            if leaves := {names: below + names for names, _ in named_leaves(child)}:
                part.fields[name] = leaves
        elif name == "inner_states":
            groups = [(key_names(label)[-1], x) for label, x in one_level(child)[0]]
            part.scopes[name] = {label: our_scope(x, (*below, label)) for label, x in groups}
        elif name in ("inner", "parts"):
            dissolved += our_scope(child, below)
        else:
            part.scopes[name] = {"": our_scope(child, below)}
    if part.fields or "inner_states" in part.scopes:
        return [part, *dissolved]
    return [inner for labelled in part.scopes.values() for inner in labelled[""]] + dissolved


def _holds_states(node: PyTree) -> bool:
    """Whether there are states of modulax, for a field whose trees are not like the parameters."""
    leaves = jtu.tree_leaves(node, is_leaf=lambda x: isinstance(x, AbstractState))
    return any(isinstance(x, AbstractState) for x in leaves)


def their_scope(names: Iterable[Names], where: Names, ours: Iterable[Part]) -> list[Part]:
    """Read a state of optax from the names of its arrays.

    Args:
        names: the names; those that are not below `where` are left out.
        where: the location of the state.
        ours: the corresponding state of modulax, which shows what the parameters are called.
    """
    tree: dict[str, Any] = {}
    for name in names:
        if name[: len(where)] == where and name != where:
            at = tree
            for key in name[len(where) : -1]:
                at = at.setdefault(key, {})
            at[name[-1]] = name
    return _Reader(ours).scope(tree, where)


class _Reader:
    """Reads nested names of an optax state."""

    def __init__(self, ours: Iterable[Part]):
        trees = [leaves for part in every(ours) for leaves in part.fields.values()]
        self._params = {frozenset(names[0] for names in leaves) for leaves in trees if () not in leaves}
        self._nesting = nesting_fields()[0] - {"inner", "parts"}
        self._fields = _state_fields() | self._nesting | _ONE_SIDED | _ALIASES.keys()

    def scope(self, node: Any, where: Names) -> list[Part]:
        """Read a tuple, a mapping, or the state of one transformation."""
        if not isinstance(node, dict):
            return []
        if all(map(str.isdigit, node)) or self._is_named_chain(node):
            keys = sorted(node, key=lambda key: int(key) if key.isdigit() else 0)
            return [part for key in keys for part in self.scope(node[key], (*where, key))]
        if node.keys() == {"inner_state"}:  # of `masked`
            return self.scope(node["inner_state"], (*where, "inner_state"))
        part = Part(where)
        for name, child in node.items():
            below = (*where, name)
            if name == "inner_states" and isinstance(child, dict):
                part.scopes[name] = {label: self.scope(x, (*below, label)) for label, x in child.items()}
            elif name in self._nesting:
                part.scopes[name] = {"": self.scope(child, below)}
            else:
                part.fields[name] = {x[len(below) :]: x for x in _names_in(child)}
        return [part]

    def _is_named_chain(self, node: dict[str, Any]) -> bool:
        """Whether these are states by name: the entries of all have the names of fields, and not of parameters."""
        return self._nesting.isdisjoint(node) and all(
            isinstance(x, dict)
            and frozenset(x) not in self._params
            and (all(map(str.isdigit, x)) or self._fields.issuperset(x))
            for x in node.values()
        )


def _names_in(node: Any) -> list[Names]:
    return jtu.tree_leaves(node, is_leaf=lambda x: isinstance(x, tuple))


def _state_fields() -> set[str]:
    """The names of the fields of all states."""
    found, classes = set[str](), [AbstractState]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        found |= {field.name for field in dataclasses.fields(cls)}
    return found


def paired(ours: list[Part], theirs: list[Part]) -> Pairs:
    """Pair the arrays of two states."""
    pairs = Pairs()
    _pair_scopes(ours, theirs, None, pairs)
    return pairs


def _pair_scopes(ours: list[Part], theirs: list[Part], clock: Names | None, pairs: Pairs) -> None:
    """Pair the parts of two scopes; `clock` is a step count of optax for a scope without one."""
    waiting, free = list(ours), list(theirs)
    counting: list[Names] = []  # counts of modulax that have no counterpart of their own
    all_ours: list[Names] = []
    while waiting:
        part = waiting.pop(0)
        other = None if part.only_counts else _take(part, waiting, free)
        if other is not None:
            _pair_parts(part, other, clock, pairs)
        elif not part.only_counts:  # a container that optax's state does not have
            waiting[:0] = part.scopes.get("inner_state", {}).get("", [])
        if part.counter and (part.only_counts or (other and not other.counter)):
            counting.append(part.counter)
        all_ours += [part.counter] if part.counter else []
    schedules = [part.counter for part in free if part.only_counts and part.counter]
    counts = [*_counts(theirs), *([clock] if clock else [])]
    for i, name in enumerate(counting):
        source = schedules[min(i, len(schedules) - 1)] if schedules else counts[0] if counts else None
        if source:
            pairs.same.append((name, source))
    for part in theirs:  # further counts of optax
        for field in part.fields.keys() & (COUNTERS | {"hyperparams_states"}):
            left = [name for name in part.fields[field].values() if name[-1] in COUNTERS]
            pairs.same.extend((all_ours[0], name) for name in left if all_ours and part.counter)


def _counts(scope: Iterable[Part]) -> Iterator[Names]:
    """The step counts of a scope, and of groups in it, which are updated at every step too."""
    for part in scope:
        if part.counter:
            yield part.counter
        for group in part.scopes.get("inner_states", {}).values():
            yield from _counts(group)


def _take(part: Part, later: list[Part], free: list[Part]) -> Part | None:
    """Take the part of optax that corresponds; a container that modulax's state does not have is taken apart."""
    while True:
        fitting = [other for other in free if _fits(part, other)]
        if fitting:
            found = max(fitting, key=lambda other: _likeness(part, other))
            free.remove(found)
            return found
        foreign = [x for x in free if "inner_state" in x.scopes and not any(_fits(p, x) for p in later)]
        if not foreign:
            return None
        place = free.index(foreign[0])
        free[place : place + 1] = foreign[0].scopes["inner_state"][""]


def _fits(part: Part, other: Part) -> bool:
    return part.kind == other.kind and bool(part.kind or part.scopes.keys() & other.scopes.keys())


def _likeness(part: Part, other: Part) -> tuple[bool, int]:
    """Whether the arrays have the same names, and how many keys above them are the same."""
    shared = part.fields.keys() & other.fields.keys()
    same = all(part.fields[name].keys() == other.fields[name].keys() for name in shared)
    return same, len(set(part.where) & set(other.where))


def _pair_parts(part: Part, other: Part, clock: Names | None, pairs: Pairs) -> None:
    """Pair the arrays of two parts that correspond."""
    for field, theirs in other.fields.items():
        ours = part.fields.get(_ALIASES.get(field, field), {})
        if field in CONSTANTS:
            pairs.constants.update(theirs.values())
        elif field == INITIAL and part.counter:
            pairs.initial.append((part.counter, theirs[()]))
        elif theirs.keys() == {()} and len(ours) == 1:  # also of `flatten`, whose array has a name here
            pairs.same.append((next(iter(ours.values())), theirs[()]))
        else:
            for names, name in theirs.items():
                # The hyperparameters of a chain have longer paths here.
                ends = [ours[x] for x in ours if field == "hyperparams" and x[-len(names) :] == names]
                if names in ours or len(ends) == 1:
                    pairs.same.append((ours.get(names) or ends[0], name))
                elif field in _FACTORS:
                    pairs.factors.add(name)
    clocks = [other.fields[name][()] for name in ("count", "gradient_step") if () in other.fields.get(name, ())]
    for holder, labelled in part.scopes.items():
        inside = clock if holder == "inner_states" else clocks[0] if clocks else None
        for label, scope in labelled.items():
            _pair_scopes(scope, other.scopes.get(holder, {}).get(label, []), inside, pairs)
