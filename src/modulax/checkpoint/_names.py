"""Flat names of the arrays of a tree, and which name of a checkpoint goes where in another tree."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .._support.checks import listing
from ..tree._paths import join, named_leaves, split

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


_NESTING = {
    "inner",
    "inner_state",
    "inner_states",
    "inner_opt_state",
    "parts",
}  # the fields in which transforms keep the states of others


def _differ_by_nesting(name: str, other: str) -> bool:
    """Whether one name is the other after a state was put into a container, or taken out of one."""
    a, b = list(split(name)), list(split(other))
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    is_nested = not _NESTING.isdisjoint(a) or not _NESTING.isdisjoint(b)
    return is_nested and (_NESTING.issuperset(a) or _NESTING.issuperset(b))


def match(template: Mapping[str, Any], saved: Mapping[str, Any], rename: Rename, strict: bool) -> Report:
    """Which leaf of the template is filled from which name of the checkpoint.

    Equal names belong together. Without `strict`, what is left over on both sides belongs together if the names differ
    only in how the state of a transform is nested, the shapes are equal, and no other name fits.
    """
    names = renamed(saved, rename)
    restored = {name: names[name] for name in template if name in names}
    kept = [name for name in template if name not in restored]
    unused = {name: old for name, old in names.items() if name not in restored}
    if not strict:
        fits = {
            name: [
                other
                for other, source in unused.items()
                if np.shape(template[name]) == np.shape(saved[source]) and _differ_by_nesting(name, other)
            ]
            for name in kept
        }
        for name, candidates in fits.items():
            if len(candidates) == 1 and sum(candidates[0] in others for others in fits.values()) == 1:
                restored[name] = unused.pop(candidates[0])
        kept = [name for name in kept if name not in restored]
    report = Report(restored, tuple(kept), tuple(unused.values()))
    if strict and (report.kept or report.unused):
        raise ValueError(_mismatch(report))
    return report


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
