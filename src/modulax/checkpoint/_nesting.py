"""How far apart the names of states are that were put into a container or taken out of one, and the nearest pairs.

Names are tuples of keys, see `_names.py`.
"""

import collections
import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from .. import states  # noqa: F401 (defines every class of the library that `nesting_fields` lists)
from .._plugin.states import FieldKind, Section, every_field, sections, states_with_names, with_subclasses
from .._plugin.trees import Names
from ..authoring import AbstractContainer, AbstractState


class Place(NamedTuple):
    """The name of a leaf of a template in three parts: up to a state, the nesting, and within the innermost state.

    A leaf that is not in a state is all `root`.
    """

    root: Names
    nesting: Names
    rest: Names

    @property
    def state(self) -> Names:
        """The names that lead to the innermost state."""
        return self.root + self.nesting


class Nesting:
    """How the states of transforms are nested in a template, and how far a saved name is from that.

    Containers keep the states of their parts in fields declared `nested()`. A state that was put into a container has
    more of these fields in its names, and one that was taken out has fewer; a mapping of parts adds its keys. Nothing
    else in a name may differ, so that a parameter is never filled from another one.

    Args:
        template: the tree to fill.
        joined: where keys in it are whole paths.
        own: the names in it.
        saved: the names in the checkpoint.
    """

    def __init__(self, template: PyTree, joined: set[Names], own: Iterable[Names], saved: Iterable[Names]):
        self._fields, self.keyed = nesting_fields()
        self._auxiliary, self._shared = _auxiliary_fields(), _shared_fields()
        found = _sections(template)
        self._rules = {names: _rule_of(type(state)) for names, state in states_with_names(template)}
        self._known = {_rule_of(cls) for cls in with_subclasses(AbstractState)}
        self._fields |= {section.names[-1] for section in found if section.kind == "states"}
        self._sections = {section.names: section for section in found if section.kind != "states"}
        self._outer = {section.names[:-1] for section in found if section.kind == "states"}
        self._joined = joined
        self._own = _by_prefix(own)
        self._saved = _by_prefix(saved)
        self._kinds: dict[tuple[bool, Names], collections.Counter[str]] = {}
        self._copies: dict[Names, bool] = {}

    def place(self, names: Names) -> Place:
        """Split the name of a leaf of the template."""
        for stop in range(len(names), 0, -1):
            if (section := self._sections.get(names[:stop])) is not None:
                return Place(names[: section.root], names[section.root : stop - 1], names[stop - 1 :])
        # `modulax.nnx.Optimizer` keeps its state as a mapping with whole paths as keys, and trees of such mappings in
        # it, so only the names are known.
        joined = (len(prefix) for prefix in self._joined if names[: len(prefix)] == prefix)
        root = min(joined, default=len(names))
        stop = root
        while stop < len(names) and names[stop] in self._fields:
            stop += 1 + (names[stop] in self.keyed)
        return Place(names[:root], names[root:stop], names[stop:])

    def part(self, names: Names) -> tuple[Names, Names]:
        """The names of the state that a leaf is in, and of the parameter that it belongs to."""
        place = self.place(names)
        is_quantized = names[-1] in ("codes", "scales")
        return place.state, place.rest[1 : len(place.rest) - is_quantized]

    def is_shared(self, place: Place) -> bool:
        """Whether a leaf is one number for all parameters, such as a count, and not in a tree like them."""
        section = self._sections.get((*place.state, *place.rest[:1]))
        # Where only the names are known, the names of a leaf in a tree like the parameters go on behind the field.
        by_names = len(place.rest) == 1 or place.rest[0] in self._shared
        return by_names if section is None else section.kind == "shared"

    def is_copy(self, place: Place) -> bool:
        """Whether a leaf is in a tree that begins as a copy of the parameters, by the names of all fields beside it."""
        key = *place.state, *place.rest[:1]
        if key not in self._copies:
            beside = {key[-1], *(rest[0] for rest in self._own.get(place.state, ()))}
            classes = ({x.name: x for x in dataclasses.fields(cls)} for cls in with_subclasses(AbstractState))
            found = [fields[key[-1]].metadata.get("copied") for fields in classes if beside <= fields.keys()]
            self._copies[key] = bool(place.rest and found) and all(found)
        return self._copies[key]

    def clock(self, state: Names) -> Names | None:
        """The step count that schedules follow, if the state at these names keeps one, as that of an optimizer does."""
        keeps = (*state, "schedule_states") in self._sections
        names = ((*state, field) for field in ("step", "count"))
        return next((name for name in names if keeps and name in self._sections), None)

    def form(self, nesting: Names) -> Names:
        """Return a nesting without the keys of groups of parameters, in which the states of groups differ."""
        is_group = [i > 0 and nesting[i - 1] in self.keyed - {"parts"} for i in range(len(nesting))]
        return tuple("" if skips else name for name, skips in zip(nesting, is_group, strict=True))

    def distance(self, place: Place, other: Names) -> tuple[bool, int, int, int, bool] | None:
        """Return how far a saved name is from a place, or None if they don't match at all.

        The entries, the first of which counts most:

        1. whether only one of them is in an auxiliary part, such as SAM's adversary;
        2. the length of the end that both nestings share, negated: a momentum of `SGD` stays one of `SGD`;
        3. 0 for the same keys of parts, 1 if there are only more or fewer of them, and 2 for different ones;
        4. the number of names that the two states share, negated;
        5. whether the nesting differs at all.

        Rules with different keys, such as `scale_by_adam` and `scale_by_lion`, never match, nor a rule without a key
        and the key of another class. Nor does a part match
        another one if its own key is there too, or like parts of chains of which one has more than the other: it is
        not known which of them came or went.
        """
        root, nesting, rest = place
        middle = other[len(root) : len(other) - len(rest)]
        if not rest or root + middle + rest != other:
            return None
        own, others = self._keys(nesting), self._keys(middle)
        if own is None or others is None:
            return None
        if nesting != middle and self._is_of_another_rule(place.state, root + middle, own, others):
            return None
        if self._is_of_another_part(root, nesting, middle) or self._is_one_of_more(root, nesting, middle):
            return None
        # First, so that the state of an adversary is paired with that of an optimizer last.
        detour = self._auxiliary.isdisjoint(nesting) != self._auxiliary.isdisjoint(middle)
        in_common = self._own.get(root + nesting, set()) & self._saved.get(root + middle, set())
        shared = _common_end(nesting, middle)
        return detour, -shared, _difference(own, others), -len(in_common), nesting != middle

    def _is_of_another_rule(self, state: Names, saved: Names, own: Names, others: Names) -> bool:
        """Whether a saved state is that of another rule than a state of the template; both have their keys of parts."""
        # The average of `ParamEMA` is no momentum of `Ema`.
        if self._holds(self._own, state) != self._holds(self._saved, saved):
            return True
        if own[-1:] == others[-1:] or not self._is_rule(self._saved, saved):
            return False
        is_rule = self._is_rule(self._own, state) and state not in self._outer
        return is_rule or (not own and others[-1] in self._known - {self._rules.get(state, others[-1])})

    def _is_of_another_part(self, root: Names, nesting: Names, middle: Names) -> bool:
        """Whether the nestings part at two keys, of which the other tree has one too: it fills or takes that one."""
        for i, (own, other) in enumerate(zip(nesting, middle, strict=False)):
            if own != other:
                is_key = i > 0 and nesting[i - 1] in self.keyed
                before = root + nesting[:i]
                return is_key and ((*before, own) in self._saved or (*before, other) in self._own)
        return False

    def _is_one_of_more(self, root: Names, nesting: Names, middle: Names) -> bool:
        """Whether a chain on the way has other numbers of like parts, `trace` and `trace_2`, in the two trees."""
        shared = _common_end(nesting, middle)
        if shared < min(len(nesting), len(middle)):
            own, other = nesting[-1 - shared], middle[-1 - shared]
            if own != other and _kind(own) == _kind(other) and nesting[-2 - shared : -1 - shared] == ("parts",):
                return True
        for i in range(shared - 1):
            at, there = len(nesting) - shared + i + 1, len(middle) - shared + i + 1
            if nesting[at - 1] == "parts":
                own = self._like(self._own, root + nesting[:at], nesting[at])
                saved = self._like(self._saved, root + middle[:there], nesting[at])
                if own != saved and max(*own, *saved) > 1:
                    return True
        return False

    def _like(self, by_prefix: Mapping[Names, set[Names]], prefix: Names, key: str) -> tuple[int, int]:
        """The number of parts like one of a chain, and of chains of its name that are one in the other."""
        where = by_prefix is self._own, prefix
        if where not in self._kinds:
            self._kinds[where] = collections.Counter(map(_kind, {rest[0] for rest in by_prefix.get(prefix, ())}))
        return self._kinds[where][_kind(key)], 1 + ((*prefix, key, "parts", key) in by_prefix)

    def _keys(self, nesting: Names) -> Names | None:
        """Return the keys of parts in a nesting; None if it contains a name that is neither a key nor such a field."""
        keys, i = [], 0
        while i < len(nesting):
            if nesting[i] not in self._fields:
                return None
            has_key = nesting[i] in self.keyed and i + 1 < len(nesting)
            if has_key:
                keys.append(nesting[i + 1])
            i += 1 + has_key
        return tuple(keys)

    def _is_rule(self, by_prefix: Mapping[Names, set[Names]], prefix: Names) -> bool:
        """Whether the state at a prefix is under the key of a part and holds no further states."""
        ends_in_key = len(prefix) > 1 and prefix[-2] in self.keyed
        return ends_in_key and not self._holds(by_prefix, prefix)

    def _holds(self, by_prefix: Mapping[Names, set[Names]], prefix: Names) -> bool:
        """Whether the state at a prefix holds further states."""
        return any(rest[0] in self._fields for rest in by_prefix.get(prefix, ()))


def nesting_fields() -> tuple[set[str], set[str]]:
    """The names of all fields of states that hold states of other transforms, and those that hold a mapping of them."""
    fields = [x for x in every_field(AbstractState) if x.metadata.get("holds") == "states"]
    origins = [(x.name, typing.get_origin(x.type)) for x in fields]
    mappings = {name for name, origin in origins if isinstance(origin, type) and issubclass(origin, Mapping)}
    return {x.name for x in fields}, mappings


def _shared_fields() -> set[str]:
    """The names of fields that hold what all parameters share in every state that has one of this name."""
    kinds = collections.defaultdict[str, set[FieldKind | None]](set)
    for field in every_field(AbstractState):
        kinds[field.name].add(field.metadata.get("holds"))
    return {name for name, found in kinds.items() if found == {"shared"}}


def _auxiliary_fields() -> set[str]:
    """The names of all state fields in which containers keep the states of auxiliary parts."""
    parts = [field.metadata["part"] for field in every_field(AbstractContainer) if field.metadata.get("auxiliary")]
    return {name for name in parts if isinstance(name, str)}


def _rule_of(state: type) -> str:
    """The key that a rule has in a chain, if its state is called as it is, such as `ScaleByAdamState`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z].)", "_", state.__name__.removesuffix("State")).lower()


def _sections(template: PyTree) -> list[Section]:
    """The fields of every state, also in one that all parameters share: that of `Flatten` has moments, as vectors."""
    inside, found = dict(states_with_names(template)), list[Section]()
    queue = list(sections(template))
    for section in queue:  # which grows
        is_state = section.kind == "shared" and section.names in inside
        found.append(section._replace(kind="states") if is_state else section)
        queue += sections(inside[section.names], section.names, section.root) if is_state else ()
    return found


def _by_prefix(names: Iterable[Names]) -> dict[Names, set[Names]]:
    """The rest of every name, by each of its prefixes."""
    found: dict[Names, set[Names]] = {}
    for name in names:
        for stop in range(len(name)):
            found.setdefault(name[:stop], set()).add(name[stop:])
    return found


def _common_end(a: Names, b: Names) -> int:
    """The number of names with which both end."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _kind(key: str) -> str:
    """The name of a part of a chain without the number that tells like parts apart."""
    return re.sub(r"_\d+$", "", key)


def _is_within(short: Names, long: Names) -> bool:
    """Whether the keys occur among the others in the same order."""
    remaining = iter(long)
    return all(key in remaining for key in short)


def _difference(own: Names, others: Names) -> int:
    """How far the keys of parts differ: 0 for none, 1 if there are only more or fewer, 2 for different ones."""
    return 0 if own == others else 1 if _is_within(own, others) or _is_within(others, own) else 2


Near = Mapping[Any, Iterable[tuple[Names, Names]]]
"""Pairs of a name in the template and one in the checkpoint, by their distance."""


def candidates(
    nesting: Nesting, places: Mapping[Names, Place], leaves: Mapping[Names, Any], saved: Mapping[Names, Any]
) -> tuple[dict[Names, Names], Near]:
    """Return the pairs that are certain, and those that match, by distance."""
    alike = collections.defaultdict[Any, list[Names]](list)  # by shape and last key, which must be equal
    for other, x in saved.items():
        alike[np.shape(x), other[-1:]].append(other)
    found: dict[Names, Names] = {}
    near = collections.defaultdict[Any, list[tuple[Names, Names]]](list)
    for name, leaf in leaves.items():
        place = places[name]
        # A leaf that is not in a state is matched by its name alone. `check` reports another shape.
        if name in saved and not (place.rest and np.shape(leaf) == np.shape(saved[name])):
            found[name] = name
        for other in alike[np.shape(leaf), name[-1:]]:
            distance = nesting.distance(place, other)
            if distance is not None:
                near[distance].append((name, other))
    return found, near


def add_nearest(found: dict[Names, Names], near: Near) -> None:
    """Add the pairs of which neither name is as near to another one, from the nearest distance on."""
    settled, taken = set(found), set(found.values())
    for distance in sorted(near):
        assigned = set(found.values())
        pairs = [(name, other) for name, other in near[distance] if name not in found and other not in assigned]
        by_name, by_other = (collections.Counter(pair[i] for pair in pairs) for i in (0, 1))
        for name, other in pairs:
            if by_name[name] == by_other[other] == 1 and name not in settled and other not in taken:
                found[name] = other
        # With two equally near partners a name gets neither, so that no array is restored from another parameter.
        settled.update(by_name)
        taken.update(by_other)
