"""Flat names of the arrays of a tree, and how names in a checkpoint are matched with those of a template.

A name is the path of a leaf as one string (`tree/_paths.py`: `join` and `split`). `stored` lists the arrays of a tree
by name; `renamed` applies the user's rules to the names of a checkpoint; `match` pairs both sides and returns a
`Report`. Without `strict`, `Nesting` also recognizes a state that was put into a container or taken out of one, and
`_nearest` pairs the names that are each other's only nearest one. Nothing here reads a file: `_store.py` does, and
`_convert.py` puts the values into the template.
"""

import collections
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .. import states  # noqa: F401 (defines every class of the library that `nesting_fields` lists)
from .._protocol.container import auxiliary_fields
from .._support.arithmetic import is_numeric_array
from .._support.checks import listing
from ..tree._paths import is_joined, join, key_names, named_leaves, split
from ..tree._stacks import unstack
from ..tree._state import Names, nesting_fields, sections

Rename = Mapping[str, str] | Callable[[str], str | None] | None


STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def is_stored(x: Any) -> bool:
    """Whether a leaf is an array with elements, or a number. orbax stores no other arrays."""
    if isinstance(x, (np.ndarray, np.generic)) and not is_numeric_array(x):
        return False
    return isinstance(x, STORED) and getattr(x, "size", 1) > 0


def stored(tree: PyTree) -> dict[str, Any]:
    """List the arrays and numbers of a tree by name. Functions and strings in a model are code, and are not stored.

    Raises:
        ValueError: if two leaves have the same name.
    """
    found = [(join(names), x) for names, x in named_leaves(unstack(tree)) if is_stored(x)]
    by_name = dict(found)
    if len(by_name) < len(found):
        names = [name for name, _ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"Two leaves of the tree have the same name, `{twice}`, so a checkpoint could hold only one of them."
        )
    return by_name


def joined_prefixes(tree: PyTree) -> set[Names]:
    """The locations of keys in a tree that are whole paths, as in the state of `modulax.nnx.Optimizer`."""
    paths = [path for path, _ in jtu.tree_leaves_with_path(tree)]
    return {key_names(path[:i]) for path in paths for i, key in enumerate(path) if is_joined(key)}


@dataclasses.dataclass(frozen=True)
class Report:
    """How the names of a checkpoint and of a template were matched.

    Attributes:
        restored: for every restored leaf of the template, the name in the checkpoint that it was read from.
        fresh: leaves of the template that the checkpoint doesn't have; they have the values of the template.
        unused: names of the checkpoint that the template doesn't have.
        proposed: the `rename` with which unused arrays would fill fresh leaves of the same shapes, if there is one.
    """

    restored: dict[str, str]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    proposed: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        moved = {name: source for name, source in self.restored.items() if name != source}
        lines = [f"restored {len(self.restored)}, fresh {len(self.fresh)}, unused {len(self.unused)}"]
        lines += [f"  moved   {source} -> {name}" for name, source in moved.items()]
        lines += [f"  fresh   {name}" for name in self.fresh]
        lines += [f"  unused  {name}" for name in self.unused]
        lines += [f"Shapes agree with `rename={self.proposed}`."] if self.proposed else []
        return "\n".join(lines)


def renamed(names: Mapping[str, Any], rename: Rename) -> dict[str, str]:
    """Map the new names of a checkpoint to its old ones; names that were dropped are left out.

    Raises:
        ValueError: if two names become the same, or a rule matches nothing.
    """
    out: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        new = rename(name) if callable(rename) else _apply_rules(name, rename or {}, used)
        if new is None:
            continue
        if new in out:
            raise ValueError(
                f"`rename` gives `{out[new]}` and `{name}` of the checkpoint the same name, `{new}`. "
                f"Rename one of them differently."
            )
        out[new] = name
    if unused := [old for old in (rename if isinstance(rename, Mapping) else ()) if old not in used]:
        raise ValueError(f"`rename`: nothing in the checkpoint is called `{unused[0]}`; it has {listing(list(names))}.")
    return out


def _apply_rules(name: str, rules: Mapping[str, str], used: set[str]) -> str:
    """Apply the first rule that matches a part of a name."""
    keys = split(name)
    for old, new in rules.items():
        old_keys = split(old)
        for start in range(len(keys) - len(old_keys) + 1):
            if keys[start : start + len(old_keys)] == old_keys:
                used.add(old)
                new_keys = split(new) if new else ()
                return join((*keys[:start], *new_keys, *keys[start + len(old_keys) :]))
    return name


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
        own: the names in it.
        saved: the names in the checkpoint.
    """

    def __init__(self, template: PyTree, own: Iterable[Names], saved: Iterable[Names]):
        self._fields, self._keyed = nesting_fields()
        self._auxiliary = auxiliary_fields()
        self._sections = {section.names: section.root for section in sections(template)}
        self._joined = joined_prefixes(template)
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
        detour = 3 * (self._auxiliary.isdisjoint(nesting) != self._auxiliary.isdisjoint(middle))
        keys = 0 if own == others else 1 if _is_within(own, others) or _is_within(others, own) else 2
        in_common = self._own.get(root + nesting, set()) & self._saved.get(root + middle, set())
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


def match(
    template: PyTree, leaves: Mapping[str, Any], saved: Mapping[str, Any], rename: Rename, strict: bool
) -> Report:
    """Decide which leaf of the template is filled from which name of the checkpoint.

    Equal names match. Without `strict`, names also match if they differ only in how the state of a transform is nested,
    their shapes are equal, and no other name is as near.

    Raises:
        ValueError: if `strict` and the names don't agree.
    """
    names = renamed(saved, rename)
    pairs = {name: name for name in leaves if name in names}
    if not strict and (len(pairs) < len(leaves) or len(pairs) < len(names)):
        pairs = _nearest(template, leaves, names, saved)
    restored = {name: names[pairs[name]] for name in leaves if name in pairs}
    fresh = tuple(name for name in leaves if name not in restored)
    left = {names[other] for other in names.keys() - set(pairs.values())}
    unused = tuple(old for old in saved if old in left)
    report = Report(restored, fresh, unused, _proposed(fresh, unused, leaves, saved))
    if strict and (report.fresh or report.unused):
        raise ValueError(_mismatch(report))
    return report


def _nearest(
    template: PyTree, leaves: Mapping[str, Any], names: Mapping[str, str], saved: Mapping[str, Any]
) -> dict[str, str]:
    """Find for each leaf of the template the nearest name of the checkpoint, unless it is ambiguous."""
    nesting = Nesting(template, map(split, leaves), map(split, names))
    alike: dict[tuple[Any, ...], list[str]] = {}  # by shape and last key, which must be equal
    for other, source in names.items():
        alike.setdefault((np.shape(saved[source]), split(other)[-1:]), []).append(other)
    found: dict[str, str] = {}
    near: dict[tuple[int, int, bool], list[tuple[str, str]]] = {}
    for name, leaf in leaves.items():
        place = nesting.place(split(name))
        if not place.rest and name in names:
            found[name] = name  # not in a state
        for other in alike.get((np.shape(leaf), split(name)[-1:]), ()):
            distance = nesting.distance(place, split(other))
            if distance is not None:
                near.setdefault(distance, []).append((name, other))
        if name in names and place.rest and np.shape(leaf) != np.shape(saved[names[name]]):
            found[name] = name  # `check` reports the shape
    settled, taken = set(found), set(found.values())
    for distance in sorted(near):
        pairs = near[distance]
        by_name, by_other = (collections.Counter(pair[i] for pair in pairs) for i in (0, 1))
        for name, other in pairs:
            if by_name[name] == by_other[other] == 1 and name not in settled and other not in taken:
                found[name] = other
        settled.update(by_name)
        taken.update(by_other)
    return found


# Names of one shape are compared in pairs, which takes seconds for more of them.
_MOST_PAIRS = 10_000


def _proposed(
    fresh: Iterable[str], unused: Iterable[str], leaves: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[str, str]:
    """Find the rules for `rename` that would fill most fresh leaves from unused arrays of the same shapes.

    A rule is proposed if no other one fills as many of the same leaves: two layers of one shape are ambiguous.
    """
    by_shape = collections.defaultdict[Any, list[str]](list)
    for old in unused:
        by_shape[np.shape(saved[old])].append(old)
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name in fresh:
        olds = by_shape.get(np.shape(leaves[name]), [])
        for old in olds if len(olds) ** 2 <= _MOST_PAIRS else []:
            rule = _difference(old, name)
            if rule is not None and _apply_rules(old, dict([rule]), set()) == name:
                pairs.setdefault(rule, []).append((old, name))
    rules: dict[str, str] = {}
    taken = set[str]()
    while pairs:
        most = max(map(len, pairs.values()))
        best = [rule for rule, found in pairs.items() if len(found) == most]
        counts = collections.Counter(x for rule in best for pair in pairs[rule] for x in set(pair))
        for rule in best:
            if all(counts[x] == 1 for pair in pairs[rule] for x in pair) and rule[0] not in rules:
                rules.update([rule])
        taken |= counts.keys()
        rest = {rule: [p for p in found if taken.isdisjoint(p)] for rule, found in pairs.items()}
        pairs = {rule: found for rule, found in rest.items() if found}
    return rules


def _difference(old: str, new: str) -> tuple[str, str] | None:
    """The parts in which two names differ, without what they have in common at either end."""
    a, b = split(old), split(new)
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    end = next((i for i in range(shorter - start) if a[-1 - i] != b[-1 - i]), shorter - start)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    return (join(a), join(b)) if a and b else None


def _mismatch(report: Report) -> str:
    """Write the error message for names that don't agree."""
    said = []
    if report.fresh:
        close = difflib.get_close_matches(report.fresh[0], report.unused, 1)
        hint = f" (it has `{close[0]}`)" if close else ""
        said.append(f"the checkpoint lacks {listing(report.fresh)}{hint}")
    if report.unused:
        said.append(f"the template has no place for {listing(report.unused)}")
    rename = 'Pass `rename={"old": "new"}`'
    if report.proposed:
        rename = f"Shapes agree with `rename={report.proposed}`. Pass it"
    return (
        f"The checkpoint and the template do not agree: {'; '.join(said)}. "
        f"{rename} for renamed parts, or `strict=False` to restore what both have."
    )
