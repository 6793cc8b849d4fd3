"""Pair the arrays of two states of optax by their names, of which one may be nested otherwise than the other.

The form of a state follows from the optimizer (`compat`). A training of optax may have had the same transformations in
other chains and masks, or a container that the optimizer lacks. orbax returns dicts and lists for NamedTuples, so only
names are compared. Chains and masks hold states in order: each state takes the first of the other side, of those that
are left, with its fields.

Step counts are paired last. A count without counterpart gets another one of the same scope, which is what steps
together.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from .._plugin.messages import listing
from .._plugin.trees import Names
from ..compat._plugin import CLASSES, OTHER_COUNTS
from ._nesting import nesting_fields
from ._stored import nested

_COUNTS = ("count", "step")
_FIELDS = {name for cls in CLASSES.values() for name in cls._fields}
# Fields that only some states of a class have.
_OPTIONAL = {"count", "delta", "noise", "skip_state"}
_State = dict[str, Any]
"""The state of one transformation: its fields, as nested names."""


@dataclasses.dataclass
class _Scope:
    """What steps together: states that are left, step counts, and wanted counts without counterpart.

    `outer` is a count in case there is none among them.
    """

    given: list[_State]
    outer: Names | None
    clocks: list[Names] = dataclasses.field(default_factory=list)
    counting: list[Names] = dataclasses.field(default_factory=list)


class Pairing:
    """The names of one state of optax by those of another.

    Args:
        wanted: the names of the state that is looked for.
        given: those of the state in which it is looked for.
        chains: the names of the parts of each chain, in the order in which they are in a tuple.

    Attributes:
        links: the names that are given by those wanted.
        spare: step counts that are given, and needed by nothing.

    Raises:
        ValueError: if a `named_chain` has parts of other names.
    """

    def __init__(self, wanted: Iterable[Names], given: Iterable[Names], chains: Sequence[Collection[str]]):
        self._chains = chains
        self._nesting, _ = nesting_fields()
        self._known = _FIELDS | self._nesting | {name for names in chains for name in names}
        self.links: dict[Names, Names] = {}
        self.spare: set[Names] = set()
        tree, other = (nested({name or ("",): name for name in names}) for names in (wanted, given))
        self._scope(tree, other, None)

    def _scope(self, wanted: Any, given: Any, outer: Names | None) -> list[Names]:
        """Pair the states in one place, and return the step counts there."""
        scope = _Scope(list(self._states(given)), outer)
        for state in self._states(wanted):
            self._state(state, scope)
        self._refuse_named_chains(scope.given)
        schedules = [state["count"] for state in scope.given if state.keys() == {"count"}]
        steps = [state["count"] for state in scope.given if _counts_steps(state)]
        known = [*schedules[-1:], *scope.clocks, *([outer] if outer else []), *steps]
        for i, name in enumerate(scope.counting):
            if candidates := [*schedules[i:], *known]:
                self.links[name] = candidates[0]
        self.spare.update(state["count"] for state in scope.given if isinstance(state.get("count"), tuple))
        return [*schedules, *scope.clocks]

    def _refuse_named_chains(self, states: Iterable[_State]) -> None:
        for state in states:
            if not state.keys() <= _FIELDS and self._is_named_chain(state):
                raise ValueError(
                    f"The state of `optax.named_chain` has the parts {listing(state)}. Give the parts of the `Chain` "
                    f"the same names, `Chain({', '.join(f'{key}=...' for key in state)})`."
                )

    def _state(self, state: _State, scope: _Scope) -> None:
        """Pair a state; a container that is not given is taken apart."""
        other = self._take(state, scope) if state.keys() != {"count"} else None
        if other is not None:
            self._pair(state, other, scope)
            return
        scope.counting += [state[name] for name in _COUNTS if isinstance(state.get(name), tuple)][:1]
        for field in filter(self._nesting.__contains__, state):
            for inside in self._states(state[field]):
                self._state(inside, scope)

    def _pair(self, state: _State, other: _State, scope: _Scope) -> None:
        """Pair the fields of two states."""
        if _counts_steps(other):
            scope.clocks.append(other["count"])
            self.spare.add(other["count"])
        elif _counts_steps(state):
            scope.counting.append(state["count"])
        clock = other.get("gradient_step", other.get("count"))
        for field, x in state.items():
            if field not in self._nesting:
                self._leaves(field, _leaves(x), _leaves(other.get(field, {})))
            elif field == "inner_states":  # groups, which all step with the rest
                for label in x:
                    scope.clocks += self._scope(x[label], other.get(field, {}).get(label, {}), scope.outer)
            else:
                self._scope(x, other.get(field, {}), clock)

    def _take(self, state: _State, scope: _Scope) -> _State | None:
        """Take the first state with the same fields; a container around it, if that is not wanted, is taken apart."""
        for place, other in enumerate(scope.given):
            if self._fields(other) == self._fields(state):
                return scope.given.pop(place)
        for place, other in enumerate(scope.given):
            if inside := self._opened(other):
                scope.given[place : place + 1] = inside
                return self._take(state, scope)
        return None

    def _fields(self, state: _State) -> set[str]:
        """The fields by which a state is recognized."""
        return state.keys() - _OPTIONAL - self._nesting or set(state)

    def _opened(self, state: _State) -> list[_State]:
        """The states in a container, with its step count; none if it holds groups."""
        nodes = [x for field, x in state.items() if field in self._nesting - {"inner_states"}]
        groups = state.get("inner_states")
        if isinstance(groups, dict) and [*groups] == ["train"]:  # of `selective_transform`: the rest is frozen
            nodes.append(groups["train"])
        count = [{"count": state["count"]}] if nodes and "count" in state else []
        return [*count, *(x for node in nodes for x in self._states(node))]

    def _states(self, node: Any) -> Iterator[_State]:
        """Iterate over the states in one place: in a tuple, a dict by name or a mask, or the state there."""
        if not isinstance(node, dict):
            yield {"": node}
        elif _is_tuple(node):
            # orbax stores the indices of a tuple as strings, in which "10" comes before "2".
            for key in sorted(node, key=int):
                yield from self._states(node[key])
        elif node.keys() == {"inner_state"}:
            yield from self._states(node["inner_state"])
        elif (names := next((x for x in self._chains if node.keys() <= set(x)), None)) and self._is_named_chain(node):
            for name in filter(node.__contains__, names):  # orbax sorts the dict
                yield from self._states(node[name])
        else:
            yield node

    def _is_named_chain(self, node: _State) -> bool:
        """Whether these are states by name, and not a state with trees like the parameters."""
        return all(isinstance(x, dict) and self._is_state(x) for x in node.values())

    def _is_state(self, node: _State) -> bool:
        return self._is_named_chain(node) if _is_tuple(node) else node.keys() <= self._known

    def _leaves(self, field: str, wanted: dict[Names, Names], given: dict[Names, Names]) -> None:
        """Pair the arrays of a field; the hyperparameters of a chain have longer names on one side."""
        for rest, name in wanted.items():
            if rest in given:
                self.links[name] = given[rest]
            elif field == "hyperparams":
                like = [x for end, x in given.items() if _ends(rest, end) or _ends(end, rest)]
                self.links |= {name: like[0]} if len(like) == 1 else {}


def _ends(name: Names, end: Names) -> bool:
    return f".{'.'.join(name)}".endswith(f".{'.'.join(end)}")


def _counts_steps(state: _State) -> bool:
    is_other = len(state) > 1 and any(state.keys() <= set(CLASSES[name]._fields) for name in OTHER_COUNTS)
    return isinstance(state.get("count"), tuple) and not is_other


def _is_tuple(node: dict[str, Any]) -> bool:
    return all(map(str.isdigit, node))


def _leaves(node: Any, before: Names = ()) -> dict[Names, Names]:
    """Nested names by their keys within the node."""
    if not isinstance(node, dict):
        return {before: node}
    return {rest: name for key, x in node.items() for rest, name in _leaves(x, (*before, key)).items()}
