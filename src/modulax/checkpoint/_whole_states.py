"""Pairs of names for a lenient restore, state by state: what the parameters share in a state goes with its moments.

A count without all of its moments, or moments without their count, would scale the steps of Adam by a wrong bias
correction. So where a parameter has none in the checkpoint, its state begins fresh for all parameters.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._plugin.messages import listing
from .._plugin.trees import Names, join
from ._nesting import Near, Nesting, Place, add_nearest, candidates


class Pairs(NamedTuple):
    """Which name of the checkpoint fills which one of the template.

    Args:
        sources: the names of the checkpoint by those of the template.
        refused: names of the template that could be filled only with numbers that don't belong together.
        remarks: for the report, what was refused, and which states are not restored as a whole.
        left_out: names with a source in states that begin fresh, because another part of them has none.
    """

    sources: dict[Names, Names]
    refused: set[Names]
    remarks: list[str]
    left_out: set[Names]


@dataclasses.dataclass
class _State:
    """The leaves of a state of the template: its moments, in trees like the parameters, and what these share."""

    moments: list[Names] = dataclasses.field(default_factory=list)
    shared: list[Names] = dataclasses.field(default_factory=list)


def paired(
    nesting: Nesting,
    leaves: Mapping[Names, Any],
    saved: Mapping[Names, Any],
    are_equal: Callable[[list[Names]], bool],
) -> Pairs:
    """Find the name of the checkpoint for every leaf of the template.

    First each moment gets the nearest name, unless it is ambiguous. Then what a state shares is read from the states
    that its moments are read from. One saved count may so serve several states of the template, those of groups of
    parameters. If several saved states serve one, their counts must be equal; otherwise nothing in the state is
    restored.

    A state without moments, such as the step count of an optimizer, goes with the moments in the states inside it; and
    if none of them is restored, it gets the nearest names.

    Args:
        nesting: how the states in the template and in the checkpoint are nested.
        leaves: the leaves of the template.
        saved: the arrays of the checkpoint, or their shapes and dtypes.
        are_equal: function that reads several arrays of the checkpoint and compares them.
    """
    return _Pairing(nesting, leaves, saved, are_equal).result()


def beside(nesting: Nesting, leaves: Iterable[Names]) -> dict[Names, list[Names]]:
    """What parameters share in the states of a template, with the moments in the same state, or in those inside it."""
    states = _states(nesting, {name: nesting.place(name) for name in leaves})

    def moments(where: Names) -> list[Names]:
        inside = (state.moments for names, state in states.items() if names[: len(where)] == where)
        return states[where].moments or [name for names in inside for name in names]

    return {name: found for where, x in states.items() for found in (moments(where),) for name in x.shared}


def in_part(nesting: Nesting, leaves: Iterable[Names], found: Container[Names]) -> tuple[set[Names], list[str]]:
    """What to leave fresh of what is found, in states with a count that has no moments of some parameters.

    Args:
        nesting: how the states in the template are nested.
        leaves: the leaves of the template.
        found: the names of those that have a source.

    Returns:
        The names of what begins fresh with these moments, and remarks on all states that are not restored as a whole.
    """
    places = {name: nesting.place(name) for name in leaves}
    left_out, said = set[Names](), list[str]()
    for state in _states(nesting, places).values():
        moments, lacking = _parted(state.moments, found)
        shared, fresh = _parted(state.shared, found)
        if shared and not all(nesting.is_copy(places[x]) for x in lacking):  # a copy needs no count
            left_out.update(shared, moments)
            said.append(
                f"{listing(map(join, moments + shared))} begin fresh together with {listing(map(join, lacking))}, for "
                f"which {listing(map(join, shared))} would be wrong. To keep the former, give new parameters a group "
                f"of their own in a `Partition`."
            )
        elif lacking and shared:
            said.append(f"Fresh next to the restored {listing(map(join, shared))}: {listing(map(join, lacking))}.")
        elif fresh and moments:
            said.append(f"Fresh next to restored moments: {listing(map(join, fresh))}.")
    return left_out, said


def _parted(names: Iterable[Names], found: Container[Names]) -> tuple[list[Names], list[Names]]:
    """The names that are found, and the others."""
    there, lacking = list[Names](), list[Names]()
    for name in names:
        (there if name in found else lacking).append(name)
    return there, lacking


def _states(nesting: Nesting, places: Mapping[Names, Place]) -> dict[Names, _State]:
    """The leaves of a template by the state that they are in."""
    states = collections.defaultdict[Names, _State](_State)
    for name, place in places.items():
        if place.rest:
            state = states[place.state]
            (state.shared if nesting.is_shared(place) else state.moments).append(name)
    return states


@dataclasses.dataclass
class _Pairing:
    """What is known while the leaves are paired; the arguments are those of `paired`."""

    nesting: Nesting
    leaves: Mapping[Names, Any]
    saved: Mapping[Names, Any]
    are_equal: Callable[[list[Names]], bool]

    def __post_init__(self) -> None:
        self.places = {name: self.nesting.place(name) for name in self.leaves}
        self.states = _states(self.nesting, self.places)
        self.found: dict[Names, Names] = {}
        self.refused: set[Names] = set()
        self.remarks: list[str] = []

    def result(self) -> Pairs:
        self.found, near = candidates(self.nesting, self.places, self.leaves, self.saved)
        shared = {name for state in self.states.values() for name in state.shared}
        add_nearest(self.found, _where(near, lambda name: name not in shared))
        waiting = self._filled_from_sources()
        names = {name for state in waiting for name in state.shared}
        others = self._nearest(_where(near, lambda name: name in names))
        for state in waiting:
            self._fill(state, {name: others.get(name, []) for name in state.shared})
        for where in sorted(self.states, key=len, reverse=True):
            self._fill_clock(where)
        self._fill_steps()
        left_out, said = in_part(self.nesting, self.leaves, self.found)
        return Pairs(self.found, self.refused, self.remarks + said, left_out)

    def _filled_from_sources(self) -> list[_State]:
        """Fill what each state shares from where its moments are, and return the states that have none."""
        waiting = list[_State]()
        for where in sorted(self.states, key=len, reverse=True):  # outer states go with those inside
            state = self.states[where]
            sources = self._sources(where, state)
            self._fill(state, {name: [x + self.places[name].rest for x in sources] for name in state.shared})
            if not sources and not state.moments:
                waiting.append(state)
        return waiting

    def _sources(self, where: Names, state: _State) -> list[Names]:
        """The saved states that the moments of a state, or of those inside it, are read from."""
        if state.moments:
            return _unique(self._source(name) for name in state.moments if name in self.found)
        inside = self._restored_in(where)
        taken = {self._source(name) for name in inside}
        ways = dict.fromkeys((self._source(name), self.places[name].state[len(where) :]) for name in inside)
        around = (self._around(state, source, way, taken) for source, way in ways)
        return _unique(source for source in around if source is not None)

    def _source(self, name: Names) -> Names:
        """The saved state that a leaf is read from."""
        return _state_of(self.found[name], self.places[name])

    def _around(self, state: _State, source: Names, way: Names, taken: set[Names]) -> Names | None:
        """The nearest to a state without moments, of those that hold a saved one in the same field.

        One from which the saved state is reached in the same way is meant, before one of the same name. Those from
        which states inside it are read are not meant.
        """
        near = []
        for stop in (i for i, key in enumerate(source) if key == way[0] and source[:i] not in taken):
            near += [(source[stop:] != way, distance, -stop) for distance in self._distances(state, source[:stop])]
        return source[: -min(near)[2]] if near else None

    def _distances(self, state: _State, source: Names) -> Iterator[Any]:
        """Yield how far the names of what a state shares are from those in a saved one."""
        for name in state.shared:
            other = source + self.places[name].rest
            distance = self.nesting.distance(self.places[name], other) if self._fits(name, other) else None
            if distance is not None:
                yield distance

    def _restored_in(self, where: Names) -> list[Names]:
        """The leaves of a state, and of those inside it, that are restored."""
        return [name for name in self.found if name[: len(where)] == where and self.places[name].rest]

    def _fill_clock(self, where: Names) -> None:
        """Fill the clock of schedules, which a checkpoint without `Injected` has in the optimizer that it holds."""
        clock = self.nesting.clock(where)
        if clock is None or clock in self.found or clock in self.refused or not self._restored_in(where):
            return
        inside = {self.nesting.clock(state) for state in self.states if state[:-1] == where}
        clocks = [source for name, source in self.found.items() if name in inside]
        if len(clocks) == 1:
            self.found[clock] = clocks[0]
        else:
            self.remarks.append(f"Fresh around restored states: `{join(clock)}`. Schedules that follow it begin again.")

    def _fill_steps(self) -> None:
        """Fill the steps of `modulax.nnx.Optimizer`, which counts them itself if its transform doesn't."""
        forms = ("_steps",), ("opt_state", "step")
        for (own, other), name in itertools.product((forms, forms[::-1]), self.leaves.keys() - self.found.keys()):
            root = name[: -len(own)]
            is_restored = any(x[: len(root) + 1] == (*root, "opt_state") for x in self.found)
            if name == root + own and name not in self.refused and self._fits(name, root + other) and is_restored:
                self.found[name] = root + other

    def _fits(self, name: Names, other: Names) -> bool:
        return other in self.saved and np.shape(self.leaves[name]) == np.shape(self.saved[other])

    def _fill(self, state: _State, others: Mapping[Names, list[Names]]) -> None:
        """Read what a state shares from one or several saved states; nothing if those differ."""
        values: dict[Names, Names] = {}
        for name in (name for name in others if name not in self.found):
            fitting = [other for other in others[name] if self._fits(name, other)]
            if not fitting:
                continue
            if len(fitting) < len(others[name]) or not self.are_equal(fitting):
                self._refuse(state, name, others[name])
                return
            values[name] = fitting[0]
        self.found |= values

    def _refuse(self, state: _State, name: Names, others: list[Names]) -> None:
        moments = " and the moments next to it" if state.moments else ""
        self.remarks.append(f"Fresh, because {listing(map(join, others))} differ: `{join(name)}`{moments}.")
        self.refused |= {*state.moments, *state.shared}
        for moment in state.moments:
            self.found.pop(moment, None)

    def _is_of_others(self, name: Names, other: Names) -> bool:
        """Whether moments in the saved state are restored into other states than the one of the leaf."""
        where, source = self.places[name].state, _state_of(other, self.places[name])
        inside = (x for x, y in self.found.items() if y[: len(source)] == source)
        return where != source and any(x[: len(where)] != where for x in inside)

    def _nearest(self, near: Near) -> dict[Names, list[Names]]:
        """The nearest names; of several that are as near, all if they are in states of groups of parameters."""
        found = collections.defaultdict[Names, list[Names]](list)
        settled, taken = set(self.found), set(self.found.values())
        for distance in sorted(near):
            pairs = [(name, other) for name, other in near[distance] if name not in settled and other not in taken]
            for name, other in self._of_groups(pairs):
                if not self._is_of_others(name, other):
                    found[name].append(other)
            settled.update(name for name, _ in pairs)
            taken.update(other for _, other in pairs)
        return found

    def _of_groups(self, pairs: Iterable[tuple[Names, Names]]) -> list[tuple[Names, Names]]:
        """The pairs of which all others with one of the two names are in states of groups of parameters."""
        pairs = list(pairs)
        ours, theirs = (collections.defaultdict[Names, set[Names]](set) for _ in range(2))
        for name, other in pairs:
            place = self.places[name]
            ours[other].add(self.nesting.form(place.nesting))
            theirs[name].add(self.nesting.form(_state_of(other, place)[len(place.root) :]))
        return [(name, other) for name, other in pairs if len(ours[other]) == len(theirs[name]) == 1]


def _where(near: Near, is_meant: Callable[[Names], bool]) -> Near:
    """The pairs with some names of the template."""
    return {distance: [pair for pair in pairs if is_meant(pair[0])] for distance, pairs in near.items()}


def _unique(names: Iterable[Names]) -> list[Names]:
    return list(dict.fromkeys(names))


def _state_of(name: Names, place: Place) -> Names:
    """The names that lead to the state of a leaf that has this place in it."""
    return name[: len(name) - len(place.rest)]
