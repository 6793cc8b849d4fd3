"""How far apart the names of states are that were put into a container or taken out of one, and the nearest pairs.

Names are tuples of keys, see `_names.py`.
"""

import collections
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from .. import states  # noqa: F401 (defines every class of the library that `nesting_fields` lists)
from .._protocol.container import auxiliary_fields
from ..tree._paths import Names
from ..tree._state import nesting_fields, sections


class Place(NamedTuple):
    """The name of a leaf of a template in three parts: up to a state, the nesting, and within the innermost state.

    A leaf that is not in a state is all `root`.
    """

    root: Names
    nesting: Names
    rest: Names


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
        self._fields, self._keyed = nesting_fields()
        self._auxiliary = auxiliary_fields()
        self._sections = {section.names: section.root for section in sections(template)}
        self._joined = joined
        self._own = _by_prefix(own)
        self._saved = _by_prefix(saved)

    def place(self, names: Names) -> Place:
        """Split the name of a leaf of the template."""
        for stop in range(len(names), 0, -1):
            if (root := self._sections.get(names[:stop])) is not None:
                return Place(names[:root], names[root : stop - 1], names[stop - 1 :])
        # `modulax.nnx.Optimizer` keeps its state as a mapping with whole paths as keys, and trees of such mappings in
        # it, so only the names are known.
        joined = (len(prefix) for prefix in self._joined if names[: len(prefix)] == prefix)
        root = min(joined, default=len(names))
        stop = root
        while stop < len(names) and names[stop] in self._fields:
            stop += 1 + (names[stop] in self._keyed)
        return Place(names[:root], names[root:stop], names[stop:])

    def distance(self, place: Place, other: Names) -> tuple[int, int, bool] | None:
        """Return how far a saved name is from a place, or None if they don't match at all.

        The first entry is 0 for the same keys of parts, 1 if there are only more or fewer of them, and 2 for different
        ones; it is 3 more between an auxiliary part, such as SAM's adversary, and another one. The second entry is
        smaller the more names the two states have in common. The third one says whether the nesting differs at all.
        Rules with different keys, such as `scale_by_adam` and `scale_by_lion`, never match.
        """
        root, nesting, rest = place
        middle = other[len(root) : len(other) - len(rest)]
        if not rest or root + middle + rest != other:
            return None
        own, others = self._keys(nesting), self._keys(middle)
        if own is None or others is None:
            return None
        is_own_rule = self._is_rule(self._own, root + nesting)
        if own != others and is_own_rule and self._is_rule(self._saved, root + middle) and own[-1:] != others[-1:]:
            return None
        # More than any difference in keys, so that the state of an adversary is paired with that of an optimizer last.
        detour = 3 * (self._auxiliary.isdisjoint(nesting) != self._auxiliary.isdisjoint(middle))
        keys = 0 if own == others else 1 if _is_within(own, others) or _is_within(others, own) else 2
        in_common = self._own.get(root + nesting, set()) & self._saved.get(root + middle, set())
        # Of states with equal keys, the one that shares more names is nearer.
        return detour + keys, -len(in_common), nesting != middle

    def _keys(self, nesting: Names) -> Names | None:
        """Return the keys of parts in a nesting; None if it contains a name that is neither a key nor such a field."""
        keys, i = [], 0
        while i < len(nesting):
            if nesting[i] not in self._fields:
                return None
            has_key = nesting[i] in self._keyed and i + 1 < len(nesting)
            if has_key:
                keys.append(nesting[i + 1])
            i += 1 + has_key
        return tuple(keys)

    def _is_rule(self, by_prefix: Mapping[Names, set[Names]], prefix: Names) -> bool:
        """Whether the state at a prefix is under the key of a part and holds no further states."""
        ends_in_key = len(prefix) > 1 and prefix[-2] in self._keyed
        return ends_in_key and not any(rest[0] in self._fields for rest in by_prefix.get(prefix, ()))


def _by_prefix(names: Iterable[Names]) -> dict[Names, set[Names]]:
    """The rest of every name, by each of its prefixes."""
    found: dict[Names, set[Names]] = {}
    for name in names:
        for stop in range(len(name)):
            found.setdefault(name[:stop], set()).add(name[stop:])
    return found


def _is_within(short: Names, long: Names) -> bool:
    """Whether the keys occur among the others in the same order."""
    remaining = iter(long)
    return all(key in remaining for key in short)


def nearest(nesting: Nesting, leaves: Mapping[Names, Any], saved: Mapping[Names, Any]) -> dict[Names, Names]:
    """Find for each leaf of the template the nearest name of the checkpoint, unless it is ambiguous."""
    alike = collections.defaultdict[Any, list[Names]](list)  # by shape and last key, which must be equal
    for other, x in saved.items():
        alike[np.shape(x), other[-1:]].append(other)
    found: dict[Names, Names] = {}
    near = collections.defaultdict[Any, list[tuple[Names, Names]]](list)
    for name, leaf in leaves.items():
        place = nesting.place(name)
        # A leaf that is not in a state is matched by its name alone. `check` reports another shape.
        if name in saved and not (place.rest and np.shape(leaf) == np.shape(saved[name])):
            found[name] = name
        for other in alike[np.shape(leaf), name[-1:]]:
            distance = nesting.distance(place, other)
            if distance is not None:
                near[distance].append((name, other))
    _add_nearest(found, near)
    return found


def _add_nearest(found: dict[Names, Names], near: Mapping[Any, list[tuple[Names, Names]]]) -> None:
    """Add the pairs of which neither name is as near to another one, from the nearest distance on."""
    settled, taken = set(found), set(found.values())
    for distance in sorted(near):
        pairs = near[distance]
        by_name, by_other = (collections.Counter(pair[i] for pair in pairs) for i in (0, 1))
        for name, other in pairs:
            if by_name[name] == by_other[other] == 1 and name not in settled and other not in taken:
                found[name] = other
        # With two equally near partners a name gets neither, so that no array is restored from another parameter.
        settled.update(by_name)
        taken.update(by_other)
