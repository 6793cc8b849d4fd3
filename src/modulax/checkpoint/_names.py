"""Names of the arrays of a tree, and how names in a checkpoint are matched with those of a template.

The names of an array are the keys that lead to it, a tuple. They are joined to one path (`tree/_paths.py`: `join` and
`split`) where they leave the library: on disk, in a `Report`, in an error message and in the rules of the user.

A `Template` has the arrays of a tree by names, and `match` pairs them with those of a checkpoint, after `renamed`
applied the user's rules. Without `strict`, `nearest` (`_nesting.py`) also recognizes a state that was put into a
container or taken out of one. Nothing here reads a file: `_store.py` does, and `_convert.py` puts the values into the
template.
"""

import collections
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.arithmetic import is_numeric_array
from .._support.checks import listing
from ..tree._paths import Names, is_joined, join, key_names, named_leaves, split
from ..tree._stacks import stack_like, unstack
from ._nesting import Nesting, nearest

Rename = Mapping[str, str] | Callable[[str], str | None] | None


STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def is_stored(x: Any) -> bool:
    """Whether a leaf is an array with elements, or a number. orbax stores no other arrays."""
    if isinstance(x, (np.ndarray, np.generic)) and not is_numeric_array(x):
        return False
    return isinstance(x, STORED) and getattr(x, "size", 1) > 0


def named(tree: PyTree) -> dict[Names, Any]:
    """List the arrays and numbers of a tree by their names. Functions and strings are code, and are not stored.

    Raises:
        ValueError: if two leaves have the same names.
    """
    found = [(names or ("",), x) for names, x in named_leaves(tree) if is_stored(x)]
    by_names = dict(found)
    if len(by_names) < len(found):
        counts = collections.Counter(names for names, _ in found)
        twice = join(counts.most_common(1)[0][0])
        raise ValueError(
            f"Two leaves of the tree have the same name, `{twice}`, so a checkpoint could hold only one of them."
        )
    return by_names


def stored(tree: PyTree) -> dict[str, Any]:
    """List the arrays and numbers of a tree by path, as they are stored."""
    return {join(names): x for names, x in named(unstack(tree)).items()}


class Template:
    """A tree to be filled, and its arrays by names.

    Args:
        tree: the tree.
    """

    def __init__(self, tree: PyTree):
        # `filled` restores the stacks of this tree; names are those of single parameters.
        self._form = tree
        self.tree = unstack(tree)
        self.arrays = named(self.tree)
        # Where keys are whole paths, as in the state of `modulax.nnx.Optimizer`.
        paths = [path for path, _ in jtu.tree_leaves_with_path(self.tree)]
        self.joined = {key_names(path[:i]) for path in paths for i, key in enumerate(path) if is_joined(key)}

    def filled(self, values: Mapping[Names, Any]) -> PyTree:
        """Return the tree with other values for some of its arrays."""
        leaves = [values.get(names or ("",), x) if is_stored(x) else _kept(x) for names, x in named_leaves(self.tree)]
        return stack_like(jtu.tree_structure(self.tree).unflatten(leaves), self._form)


def _kept(x: Any) -> Any:
    """A leaf that is not stored; the shape of an array without elements is all there is to it."""
    return jnp.empty(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x


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


def renamed(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """Map the new names of a checkpoint to its old ones; names that were dropped are left out.

    Raises:
        ValueError: if two names become the same, or a rule matches nothing.
    """
    names, out = list(names), dict[str, str]()
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
        raise ValueError(f"`rename`: nothing in the checkpoint is called `{unused[0]}`; it has {listing(names)}.")
    return out


def _apply_rules(name: str, rules: Mapping[str, str], used: set[str]) -> str:
    """Apply the first rule that matches a part of a name."""
    for old, new in rules.items():
        changed = _replaced(split(name), split(old), split(new) if new else ())
        if changed is not None:
            used.add(old)
            return join(changed)
    return name


def _replaced(names: Names, old: Names, new: Names) -> Names | None:
    """Replace a part of the names where it occurs first; None if it doesn't."""
    for start in range(len(names) - len(old) + 1):
        stop = start + len(old)
        if names[start:stop] == old:
            return (*names[:start], *new, *names[stop:])
    return None


class Match(NamedTuple):
    """Which array of the checkpoint fills which leaf of the template: a `Report` with names that are not joined."""

    sources: dict[Names, Names]
    fresh: list[Names]
    unused: list[Names]
    proposed: dict[str, str]


def match(
    template: Template, leaves: Mapping[Names, Any], saved: Mapping[Names, Any], rename: Rename, strict: bool
) -> Match:
    """Decide which leaf of the template is filled from which array of the checkpoint.

    Equal names match. Without `strict`, names also match if they differ only in how the state of a transform is nested,
    their shapes are equal, and no other name is as near.

    Raises:
        ValueError: if `strict` and the names don't agree.
    """
    old = _old_names(saved, rename)
    arrays = {name: saved[before] for name, before in old.items()}
    pairs = {name: name for name in leaves if name in old}
    if not strict and not len(pairs) == len(leaves) == len(old):
        pairs = nearest(Nesting(template.tree, template.joined, leaves, old), leaves, arrays)
    fresh = _without(leaves, pairs)
    unused = {old[name]: x for name, x in _without(arrays, pairs.values()).items()}
    proposed = _proposed(fresh, unused)
    if strict and (fresh or unused):
        raise ValueError(_mismatch(list(map(join, fresh)), list(map(join, unused)), proposed))
    sources = {name: old[pairs[name]] for name in _without(leaves, fresh)}
    return Match(sources, list(fresh), list(unused), proposed)


def _old_names(saved: Iterable[Names], rename: Rename) -> dict[Names, Names]:
    """The names in the checkpoint by what the rules make of them."""
    if rename is None:
        return {name: name for name in saved}
    return {split(new): split(old) for new, old in renamed(map(join, saved), rename).items()}


def _without(arrays: Mapping[Names, Any], names: Iterable[Names]) -> dict[Names, Any]:
    left_out = set(names)
    return {name: x for name, x in arrays.items() if name not in left_out}


# Names of one shape are compared in pairs, which takes seconds for more of them.
_MOST_PAIRS = 10_000
_Rule = tuple[Names, Names]
_Pairs = dict[_Rule, list[tuple[Names, Names]]]  # old and new names, by the rule that makes the one of the other


def _proposed(fresh: Mapping[Names, Any], unused: Mapping[Names, Any]) -> dict[str, str]:
    """Find the rules for `rename` that would fill most fresh leaves from unused arrays of the same shapes.

    A rule is proposed if no other one fills as many of the same leaves: two layers of one shape are ambiguous.
    """
    pairs = _possible_rules(fresh, unused)
    rules: dict[Names, Names] = {}
    while pairs:
        most = max(map(len, pairs.values()))
        best = {rule: found for rule, found in pairs.items() if len(found) == most}
        counts = collections.Counter(name for found in best.values() for pair in found for name in set(pair))
        for (old, new), found in best.items():
            if all(counts[name] == 1 for pair in found for name in pair):
                rules.setdefault(old, new)
        pairs = _left(pairs, counts)
    return {join(old): join(new) for old, new in rules.items()}


def _left(pairs: _Pairs, taken: Mapping[Names, Any]) -> _Pairs:
    """The pairs of names that are not taken, and their rules."""
    rest = {rule: [pair for pair in found if taken.keys().isdisjoint(pair)] for rule, found in pairs.items()}
    return {rule: found for rule, found in rest.items() if found}


def _possible_rules(fresh: Mapping[Names, Any], unused: Mapping[Names, Any]) -> _Pairs:
    """The rules that make the name of a fresh leaf of that of an unused array of its shape."""
    by_shape = collections.defaultdict[Any, list[Names]](list)
    for old, x in unused.items():
        by_shape[np.shape(x)].append(old)
    pairs: _Pairs = {}
    for name, leaf in fresh.items():
        olds = by_shape[np.shape(leaf)]
        for old in olds if len(olds) ** 2 <= _MOST_PAIRS else []:
            rule = _difference(old, name)
            if rule is not None and _replaced(old, *rule) == name:
                pairs.setdefault(rule, []).append((old, name))
    return pairs


def _difference(a: Names, b: Names) -> _Rule | None:
    """The parts in which two names differ, without what they have in common at either end."""
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    end = next((i for i in range(shorter - start) if a[-1 - i] != b[-1 - i]), shorter - start)
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    return (a, b) if a and b else None


def _mismatch(fresh: list[str], unused: list[str], proposed: dict[str, str]) -> str:
    """Write the error message for names that don't agree."""
    said = []
    if fresh:
        close = difflib.get_close_matches(fresh[0], unused, 1)
        hint = f" (it has `{close[0]}`)" if close else ""
        said.append(f"the checkpoint lacks {listing(fresh)}{hint}")
    if unused:
        said.append(f"the template has no place for {listing(unused)}")
    rename = 'Pass `rename={"old": "new"}`'
    if proposed:
        rename = f"Shapes agree with `rename={proposed}`. Pass it"
    return (
        f"The checkpoint and the template do not agree: {'; '.join(said)}. "
        f"{rename} for renamed parts, or `strict=False` to restore what both have."
    )
