"""Pair the arrays of a modulax state with those of an optax state.

Our state is walked in the order of the transforms, and each class says in `optax_fields` which fields the corresponding
state of optax has. That one is read from the names of its arrays alone, because orbax returns dicts and lists for its
NamedTuples. So each of our states takes the first one of optax, of those that are left, with its fields: of two like
ones, the first takes the first. What only holds states in order is no state of its own: chains, optimizers, masks.

Step counts are the exception: modulax counts in every optimizer, and optax in every transformation that needs it. A
count without a counterpart gets another one of the same scope, which is what steps together.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._catalog.optax_names import fields_in_optax
from .._containers.chain import is_chain_state
from .._support.checks import listing
from .._support.module import AbstractState
from ..tree._paths import Names, join, key_names, named_leaves
from ..tree._state import one_level, section_kind

_COUNTERS = ("count", "step")
# Fields of ours without counterpart in optax, whose initial values are right for its states.
_OURS = {"schedule_states", "skip_state", "skipped"}
# A property of ours with a name of optax, and the field that it reads.
_HELD_IN = {"hyperparams": "hyperparameters"}
# Fields with arrays of one element in optax where there are none here.
_FACTORS = {"v_row", "v_col", "v"}


class Value(NamedTuple):
    """What an array is filled from: names in the source, and a function of their arrays."""

    sources: tuple[Names, ...]
    function: Callable[..., Any]


@dataclasses.dataclass
class Plan:
    """What every array of a template is filled from, in either direction.

    Args:
        ours: the arrays on the side of modulax, by name.
        theirs: those on the side of optax.
        to_ours: whether the template is ours.
        values: what is filled, by its name.
        without: names of both sides that need no counterpart.
    """

    ours: Mapping[Names, Any]
    theirs: Mapping[Names, Any]
    to_ours: bool
    values: dict[Names, Value] = dataclasses.field(default_factory=dict)
    without: tuple[set[Names], set[Names]] = dataclasses.field(default_factory=lambda: (set(), set()))

    def link(self, ours: Names, theirs: Names, to_ours: Any = lambda x: x, to_theirs: Any = lambda x: x) -> None:
        """Say that two arrays correspond. The first link of a name counts; optax may have further ones, of counts."""
        own, source, function = (ours, theirs, to_ours) if self.to_ours else (theirs, ours, to_theirs)
        self.values.setdefault(own, Value((source,), function))
        self.without[1].add(theirs)


_Theirs = dict[str, Any]
"""The state of one transformation of optax: its fields, as nested names."""


class _Ours(NamedTuple):
    """A state of modulax: its location, its arrays and the states inside by field, and its step count.

    `names` has the fields of optax's state and ours by these. `constants` are those without one: hyperparameters, and
    the results of functions of the user.
    """

    where: Names
    arrays: dict[str, dict[Names, Names]]
    inner: dict[str, PyTree]
    names: dict[str, str]
    constants: set[str]
    counter: Names | None

    @property
    def required(self) -> set[str]:
        """The fields that the state of optax must have."""
        own = self.arrays.keys() - _OURS - {self.counter and self.counter[-1]}
        return {name for name, x in self.names.items() if x in own}

    def counts_in(self, other: _Theirs) -> Iterator[Names]:
        """The step counts in the corresponding state of optax."""
        counted = self.counter[-1] if self.counter else "count" * ("count" not in self.arrays)
        for name, x in other.items():
            if self.names.get(name, name) in (counted, "schedule_states"):
                yield from (leaf for leaf in _leaves(x).values() if leaf[-1] in ("count", name))


@dataclasses.dataclass
class _Scope:
    """What steps together: states of optax that are left, its step counts, and those of modulax.

    `outer` is a count of optax in case there is none among them, and `counting` has counts without counterpart.
    """

    theirs: list[_Theirs]
    outer: Names | None
    clocks: list[Names] = dataclasses.field(default_factory=list)
    counters: list[Names] = dataclasses.field(default_factory=list)
    counting: list[Names] = dataclasses.field(default_factory=list)

    def take(self, required: Set[str], known: Set[str]) -> _Theirs | None:
        """Take the first state of optax with these fields; a container that modulax does not have is taken apart."""
        while True:
            for place, other in enumerate(self.theirs):
                if required <= other.keys() <= known | {"count"} and other.keys() != {"count"}:
                    return self.theirs.pop(place)
            place = next((i for i, x in enumerate(self.theirs) if "inner_state" in x), None)
            if place is None:
                if not self.open_selective():
                    return None
                continue
            container = self.theirs.pop(place)
            count = [{"count": container["count"]}] if "count" in container else []
            self.theirs[place:place] = [*count, *_their_states(container["inner_state"])]

    def open_selective(self) -> bool:
        """Put what is trained in place of a `selective_transform`, which is a partition in optax and a mask here."""
        for place, other in enumerate(self.theirs):
            groups = other.get("inner_states")
            if isinstance(groups, dict) and groups.keys() == {"train"}:  # nothing is kept for "freeze"
                self.theirs[place : place + 1] = _their_states(groups["train"])
                return True
        return False


def pair(plan: Plan, state: PyTree, where: Names, there: Names) -> None:
    """Add the arrays of two states to a plan.

    Args:
        plan: the plan.
        state: the state of modulax.
        where: its location.
        there: the location of the state of optax.
    """
    walk = _Walk(plan, there, list(_states_in(state)))
    walk.scope(state, where, _nested(plan.theirs, there), None)
    for counter, theirs in walk.initial:
        plan.link(counter, theirs, lambda x: 1 - x.astype(np.int32), lambda x: x == 0)


class _Walk:
    def __init__(self, plan: Plan, there: Names, states: list[Any]):
        self.plan, self.there = plan, there
        self.initial: list[tuple[Names, Names]] = []  # counts of which optax only knows whether they are 0
        fields = {name for state in states for name in fields_in_optax(type(state)) or ()}
        names = {name for state in states if is_chain_state(state) for name in state.names}
        self.fields, self.known = fields, fields | names | {"count", "inner_state"}

    def scope(self, node: PyTree, where: Names, theirs: Any, outer: Names | None) -> _Scope:
        """Pair a state of modulax, or several, with what optax has in its place."""
        scope = _Scope(_their_states(theirs), outer)
        self.visit(node, where, scope)
        for other in scope.theirs:
            if not other.keys() <= self.fields and self.is_named_chain(other):
                raise ValueError(
                    f"The state of `optax.named_chain` has the parts {listing(other)}. Give the parts of the `Chain` "
                    f"the same names, `Chain({', '.join(f'{key}=...' for key in other)})`."
                )
        self.link_counts(scope)
        return scope

    def link_counts(self, scope: _Scope) -> None:
        """Pair the counts that have no counterpart: with those of schedules, or with any other of the scope."""
        while scope.open_selective():
            pass
        schedules = [x["count"] for x in scope.theirs if x.keys() == {"count"}]
        others = [*schedules[-1:], *scope.clocks, *([scope.outer] if scope.outer else [])]
        for i, counter in enumerate(scope.counting):
            for name in [*schedules[i:], *others][:1]:
                self.plan.link(counter, name)
        further = [*scope.clocks, *(x["count"] for x in scope.theirs if "count" in x)]
        for name in further if scope.counters else ():
            self.plan.link(scope.counters[0], name)
        scope.clocks[:0] = schedules

    def visit(self, node: PyTree, where: Names, scope: _Scope) -> None:
        if is_chain_state(node):
            self.open_named(node.names, scope)
            for name in filter(node.parts.__contains__, node.names):  # a dict that was in a program is sorted
                self.visit(node.parts[name], (*where, "parts", name), scope)
        elif isinstance(node, AbstractState):
            self.state(_ours(node, where), scope)
        elif hasattr(node, "_fields"):  # of an optax transformation that was adapted
            for part in _their_states(_nested(_located(node, where).values(), where)):
                for name, theirs in (scope.take(part.keys(), part.keys()) or {}).items():
                    self.field(name, _leaves(part[name]), _leaves(theirs))
        else:
            for key, child in one_level(node)[0]:
                self.visit(child, where + key_names(key), scope)

    def open_named(self, names: Sequence[str], scope: _Scope) -> None:
        """Put the parts of a `named_chain` into the order of a chain here: the dict that holds them may be sorted."""
        for place, other in enumerate(scope.theirs):
            if other.keys() <= set(names) and self.is_named_chain(other):
                scope.theirs[place : place + 1] = [x for name in names for x in _their_states(other.get(name))]
                return

    def is_named_chain(self, node: Any) -> bool:
        """Whether these are states by name, and not a state with trees like the parameters."""
        return all(isinstance(x, dict) and self.is_state(x) for x in node.values())

    def is_state(self, node: dict[str, Any]) -> bool:
        return self.is_named_chain(node) if _is_tuple(node) else node.keys() <= self.known

    def state(self, ours: _Ours, scope: _Scope) -> None:
        """Pair the state of a transform."""
        for name in _OURS & ours.arrays.keys():
            self.leave_out(name, ours.arrays[name].values())
        if ours.counter:
            scope.counters.append(ours.counter)
            self.plan.without[0].add(ours.counter)
        other = None
        if ours.names.keys() - {"count", "inner_state"} and (ours.arrays or ours.inner):
            other = scope.take(ours.required, ours.names.keys())
        if other is not None:
            self.fields_of(ours, other, scope)
            self.inside(ours, other, scope)
            return
        if ours.counter and ours.arrays.keys() <= {*_OURS, *_COUNTERS}:
            scope.counting.append(ours.counter)
        for name, child in ours.inner.items():
            self.visit(child, (*ours.where, name), scope)

    def leave_out(self, field: str, names: Iterable[Names]) -> None:
        """Let a field be without counterpart, unless it holds what optax cannot express."""
        is_lost = field == "schedule_states" or (field == "skipped" and any(np.any(self.plan.ours[x]) for x in names))
        if self.plan.to_ours or not is_lost:
            self.plan.without[0].update(names)

    def fields_of(self, ours: _Ours, other: _Theirs, scope: _Scope) -> None:
        """Pair the arrays of two states, and their counts."""
        for name, x in other.items():
            own = ours.names.get(name, name)
            if name == "is_initial_step" and ours.counter:
                self.initial.append((ours.counter, x))
            elif name in ours.constants:
                self.plan.without[1].update(_leaves(x).values())
            elif own not in ours.inner:
                self.field(own, ours.arrays.get(own, {}), _leaves(x))
        clocks = list(ours.counts_in(other))
        if ours.counter and not clocks:
            scope.counting.append(ours.counter)
        scope.clocks += clocks

    def field(self, field: str, ours: Mapping[Names, Names], theirs: Mapping[Names, Names]) -> None:
        """Pair the arrays of a field, by their names in it."""
        if theirs.keys() == {()} and len(ours) == 1:  # also of `flatten`, whose array has a name here
            ours = dict.fromkeys(theirs, *ours.values())
        for rest, name in theirs.items():
            if own := _counterpart(field, ours, rest):
                self.plan.link(own, name)
            elif field in _FACTORS and (not self.plan.to_ours or np.size(self.plan.theirs[name]) == 1):
                self.plan.without[1].add(name)

    def inside(self, ours: _Ours, other: _Theirs, scope: _Scope) -> None:
        """Pair the states inside two states, and what optax keeps among the parameters."""
        counters = list[Names]()
        for own, child in ours.inner.items():
            where = (*ours.where, own)
            theirs = next((x for name, x in other.items() if ours.names.get(name) == own), {})
            if isinstance(child, Mapping):  # groups, which all step with the rest
                for key, x in one_level(child)[0]:
                    label = key_names(key)
                    scope.clocks += self.scope(x, where + label, theirs.get(label[-1]), scope.outer).clocks
            else:
                clock = other.get("gradient_step", other.get("count"))
                counters += self.scope(child, where, theirs, clock).counters
        if "slow" in ours.arrays:
            self.lookahead(ours.arrays["slow"])
        if "x" in ours.arrays and "step_count" in other:
            self.schedule_free(ours.arrays, other, [*counters, *scope.counters])

    def lookahead(self, slow: Mapping[Names, Names]) -> None:
        """Pair the slow parameters of `Lookahead` and the fast ones beside its state with the two trees of optax."""
        for rest, name in slow.items():
            before = self.beside(("slow", *rest))
            if before is not None:
                self.plan.link(name, (*before, "slow", *rest))
                if (*before, *rest) in self.plan.ours:
                    self.plan.link((*before, *rest), (*before, "fast", *rest))

    def schedule_free(self, arrays: Mapping[str, Mapping[Names, Names]], other: _Theirs, steps: list[Names]) -> None:
        """Compute the average of `ScheduleFree` from the parameters, and its count, which starts at 1 in optax."""
        plan, name, theirs = self.plan, arrays["step_count"][()], other["step_count"]
        if not plan.to_ours:
            plan.without[0].update([name, *arrays["x"].values()])
            if steps:
                plan.values[theirs] = Value((steps[0],), lambda x: x + 1)
            return
        lead = 1 - _first_count(plan.ours[name], join(name))
        plan.values[name] = Value((theirs,), lambda x: x - lead)
        sources = _leaves(other["z"])
        for rest, x in arrays["x"].items():
            before = self.beside(rest)
            if rest in sources and before is not None:
                plan.values[x] = Value(((*before, *rest), sources[rest], other["b1"]), _average)

    def beside(self, rest: Names) -> Names | None:
        """Where a parameter is in a tree that holds the state of optax too; None if that is not clear."""
        ends = [name[: -len(rest) or None] for name in self.plan.theirs if name[-len(rest) :] == rest or not rest]
        found = [x for x in dict.fromkeys(ends) if x[: len(self.there)] != self.there]
        return found[0] if len(found) == 1 else ("params",) if ("params",) in found else None


def _states_in(node: PyTree) -> Iterator[AbstractState]:
    if isinstance(node, AbstractState):
        yield node
    for _, child in one_level(node)[0]:
        yield from _states_in(child)


def _ours(node: AbstractState, where: Names) -> _Ours:
    fields = {field.name: field for field in dataclasses.fields(node)}
    children = {key[0].name: child for key, child in one_level(node)[0]}
    inner = {name: child for name, child in children.items() if _is_nested(fields[name], child)}
    located = {name: _located(children[name], (*where, name)) for name in children.keys() - inner.keys()}
    arrays = {name: leaves for name, leaves in located.items() if leaves}
    names = _in_optax(type(node))
    constants = {theirs for theirs, own in names.items() if own not in fields.keys() - {"skip_state"}}
    return _Ours(where, arrays, inner, names, constants, _counter(fields, arrays))


def _in_optax(cls: type) -> dict[str, str]:
    """The fields of a state that optax has too, by their names there."""
    return {theirs: _HELD_IN.get(own, own) for theirs, own in (fields_in_optax(cls) or {}).items()}


def _located(tree: PyTree, where: Names) -> dict[Names, Names]:
    return {names: where + names for names, _ in named_leaves(tree)}


def _counter(fields: Mapping[str, dataclasses.Field], arrays: Mapping[str, Mapping[Names, Names]]) -> Names | None:
    """The name of the step count of a state."""
    found = [x for x in _COUNTERS if x in arrays and fields[x].metadata.get("counts") != "other"]
    return arrays[found[0]][()] if found else None


def _counterpart(field: str, ours: Mapping[Names, Names], rest: Names) -> Names | None:
    if rest in ours or field != "hyperparameters":
        return ours.get(rest)
    ends = [x for x in ours if x[-len(rest) :] == rest]  # those of a chain have longer paths here
    return ours[ends[0]] if len(ends) == 1 else None


def _is_nested(field: dataclasses.Field, child: PyTree) -> bool:
    """Whether a field holds states of transforms, also if its trees are not like the parameters."""
    return section_kind(field, child) == "states" or (field.name == "inner_state" and any(_states_in(child)))


def _nested(names: Iterable[Names], where: Names) -> dict[str, Any]:
    """The names below a location, as nested dicts by their keys."""
    tree: dict[str, Any] = {}
    for name in names:
        if name[: len(where)] == where and name != where:
            at = tree
            for key in name[len(where) : -1]:
                at = at.setdefault(key, {})
            at[name[-1]] = name
    return tree


def _leaves(node: Any, before: Names = ()) -> dict[Names, Names]:
    """Nested names by their keys within the node."""
    if not isinstance(node, dict):
        return {before: node}
    return {rest: name for key, x in node.items() for rest, name in _leaves(x, (*before, key)).items()}


def _their_states(node: Any) -> list[_Theirs]:
    """Read what optax has in one place: a tuple, a mask, or the state of one transformation."""
    if not isinstance(node, dict):
        return []
    if _is_tuple(node):
        # orbax stores the indices of a tuple as strings, in which "10" comes before "2".
        return [x for key in sorted(node, key=int) for x in _their_states(node[key])]
    return _their_states(node["inner_state"]) if node.keys() == {"inner_state"} else [node]


def _is_tuple(node: dict[str, Any]) -> bool:
    return all(map(str.isdigit, node))


def _first_count(leaf: Any, name: str) -> int:
    """The step count of `ScheduleFree` in a template, which is that of the initial state."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(f"`{name}` of the template has no value. Pass `optimizer.init(params)`, whose count is known.")
    if int(leaf) > 1:
        raise ValueError(f"`{name}` of the template is {int(leaf)}. Pass the initial state, `optimizer.init(params)`.")
    return int(leaf)


def _average(y: Any, z: Any, b1: Any) -> Any:
    """The average of `schedule_free`, from the parameters that are trained."""
    y, z, b1 = (jnp.asarray(x).astype(z.dtype) for x in (y, z, b1))
    # optax keeps `z`, and the parameters `y = b1 * x + (1 - b1) * z`.
    return (y - (1 - b1) * z) / b1
