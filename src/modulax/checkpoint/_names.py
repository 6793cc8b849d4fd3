"""Flat names of the arrays of a tree, and which name of a checkpoint goes where in another tree."""

import collections
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.container import auxiliary_fields
from .._support.checks import listing
from ..tree._paths import is_joined, join, key_names, named_leaves, split
from ..tree._state import Names, nesting_fields, sections

Rename = Mapping[str, str] | Callable[[str], str | None] | None


STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def stored(tree: PyTree) -> dict[str, Any]:
    """What of a tree is stored, by name: arrays and numbers. Functions, strings and flags in a model are code."""
    found = [(join(names), x) for names, x in named_leaves(tree) if isinstance(x, STORED)]
    by_name = dict(found)
    if len(by_name) < len(found):
        names = [name for name, _ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"Two leaves of the tree have the name `{twice}`, so a checkpoint could hold only one of them."
        )
    return by_name


def joined_prefixes(tree: PyTree) -> set[Names]:
    """Where a tree has keys that are whole paths, as `modulax.nnx.Optimizer` keeps its state."""
    paths = [path for path, _ in jtu.tree_leaves_with_path(tree)]
    return {key_names(path[:i]) for path in paths for i, key in enumerate(path) if is_joined(key)}


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of the names of a checkpoint and of a template.

    Attributes:
        restored: for every restored leaf of the template the name in the checkpoint that it was filled from.
        kept: the leaves that the checkpoint does not have; they are as in the template.
        unused: the names of the checkpoint that the template does not have.
    """

    restored: dict[str, str]
    kept: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        moved = {name: source for name, source in self.restored.items() if name != source}
        lines = [f"restored {len(self.restored)}, kept {len(self.kept)}, unused {len(self.unused)}"]
        lines += [f"  moved   {source} -> {name}" for name, source in moved.items()]
        lines += [f"  kept    {name}" for name in self.kept]
        lines += [f"  unused  {name}" for name in self.unused]
        return "\n".join(lines)


def renamed(names: Mapping[str, Any], rename: Rename) -> dict[str, str]:
    """The names of a checkpoint as they are called now, each with what it was called; dropped ones are left out."""
    out: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        new = rename(name) if callable(rename) else _apply_rules(name, rename or {}, used)
        if new is None:
            continue
        if new in out:
            raise ValueError(
                f"`rename` gives `{out[new]}` and `{name}` of the checkpoint the same name, `{new}`. "
                f"Rename one of them to something else."
            )
        out[new] = name
    if unused := [old for old in (rename if isinstance(rename, Mapping) else ()) if old not in used]:
        raise ValueError(f"`rename`: nothing in the checkpoint is called `{unused[0]}`; it has {listing(list(names))}.")
    return out


def _apply_rules(name: str, rules: Mapping[str, str], used: set[str]) -> str:
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
    """Where a leaf of a template is: names that lead to a state, names of nesting, and names within that state.

    A leaf that is not in a state is at the end of its `root`.
    """

    root: Names
    nesting: Names
    rest: Names


class Nesting:
    """How the states of transforms are nested in a template, and in a checkpoint that was nested in another way.

    The fields in which containers keep the states of their parts are declared as `nested()`. A state that was put into
    a container, or taken out of one, has more or fewer of them in its name, and mappings add a key for each part.
    Nothing else in a name may differ, so that a parameter is never filled from another one.

    Args:
        template: the tree to fill.
        saved: the names in the checkpoint.
    """

    def __init__(self, template: PyTree, saved: Iterable[Names]):
        self._fields, self._keyed = nesting_fields()
        self._auxiliary = auxiliary_fields()
        self._sections = {section.names: section.root for section in sections(template)}
        self._joined = joined_prefixes(template)
        self._own = _by_prefix(split(name) for name in stored(template))
        self._saved = _by_prefix(saved)

    def place(self, names: Names) -> Place:
        """Take the names of a leaf of the template apart."""
        for stop in range(len(names), 0, -1):
            if (root := self._sections.get(names[:stop])) is not None:
                return Place(names[:root], names[root : stop - 1], names[stop - 1 :])
        # `modulax.nnx.Optimizer` keeps its state as one mapping with whole paths as keys: the names are all there is.
        root = next((len(prefix) for prefix in self._joined if names[: len(prefix)] == prefix), len(names))
        stop = root
        while stop < len(names) and names[stop] in self._fields:
            stop += 1 + (names[stop] in self._keyed)
        return Place(names[:root], names[root:stop], names[stop:])

    def distance(self, place: Place, other: Names) -> tuple[int, int, bool] | None:
        """How far a saved name is from a place, or None if they have nothing to do with each other.

        First, 0 for the same keys of parts, 1 with more or fewer of them, 2 with others; 3 more from an auxiliary part,
        such as SAM's adversary, to another one. Then, how few names the two states have in common. Then, whether the
        names differ at all. Two rules of different names, such as `scale_by_adam` and `scale_by_lion`, are never near.
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
        """The keys of parts among names of nesting; None if there is a name that is neither key nor nesting."""
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
        """Whether the state at a prefix ends in the key of a part and holds no further states."""
        ends_in_key = len(prefix) > 1 and prefix[-2] in self._keyed
        return ends_in_key and not any(rest[0] in self._fields for rest in by_prefix.get(prefix, ()))


def _by_prefix(names: Iterable[Names]) -> dict[Names, set[Names]]:
    """The names below every prefix, without it."""
    found: dict[Names, set[Names]] = {}
    for name in names:
        for stop in range(len(name)):
            found.setdefault(name[:stop], set()).add(name[stop:])
    return found


def _is_within(short: Names, long: Names) -> bool:
    """Whether the keys are among the others, in the same order."""
    remaining = iter(long)
    return all(key in remaining for key in short)


def match(template: PyTree, saved: Mapping[str, Any], rename: Rename, strict: bool) -> Report:
    """Which leaf of the template is filled from which name of the checkpoint.

    Equal names belong together. Without `strict`, so do names that differ only in how the state of a transform is
    nested, if the shapes are equal and no other name is as near.
    """
    leaves = stored(template)
    names = renamed(saved, rename)
    pairs = {name: name for name in leaves if name in names}
    if not strict and (len(pairs) < len(leaves) or len(pairs) < len(names)):
        pairs = _nearest(template, leaves, names, saved)
    restored = {name: names[pairs[name]] for name in leaves if name in pairs}
    kept = tuple(name for name in leaves if name not in restored)
    unused = tuple(names[other] for other in names.keys() - set(pairs.values()))
    report = Report(restored, kept, tuple(old for old in saved if old in unused))
    if strict and (report.kept or report.unused):
        raise ValueError(_mismatch(report))
    return report


def _nearest(
    template: PyTree, leaves: Mapping[str, Any], names: Mapping[str, str], saved: Mapping[str, Any]
) -> dict[str, str]:
    """For each leaf of the template the nearest name of the checkpoint, where there is no doubt about it."""
    nesting = Nesting(template, map(split, names))
    alike: dict[tuple[Any, ...], list[str]] = {}  # by shape and last key, which are equal in any case
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
            found[name] = name  # is refused for its shape
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


def _mismatch(report: Report) -> str:
    said = []
    if report.kept:
        close = difflib.get_close_matches(report.kept[0], report.unused, 1)
        hint = f" (it has `{close[0]}`)" if close else ""
        said.append(f"the checkpoint lacks {listing(report.kept)}{hint}")
    if report.unused:
        said.append(f"the template has no place for {listing(report.unused)}")
    return (
        f"The checkpoint and the template do not agree: {'; '.join(said)}. "
        f'Give `rename={{"old": "new"}}` for what was renamed, or `strict=False` to restore what both have.'
    )
