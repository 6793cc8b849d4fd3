"""Names of the arrays of a tree, and how names in a checkpoint are matched with those of a template.

The names of an array are the keys that lead to it, a tuple. They are joined to one path (`tree/_paths.py`: `join` and
`split`) where they leave the library: on disk, in a `Report`, in an error message and in the rules of the user.

A `Template` has the arrays of a tree by names, and `match` pairs them with those of a checkpoint, after `renamed`
(`_renaming.py`) applied the user's rules. Without `strict`, `paired` (`_whole_states.py`) also recognizes a state that
was put into a container or taken out of one. Nothing here reads a file: `_store.py` does, and `_convert.py` puts the
values into the template.
"""

import collections
import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._plugin.arrays import is_numeric_array
from .._plugin.messages import listing
from .._plugin.states import stack_like
from .._plugin.trees import Names, is_joined, join, key_names, named_leaves, split
from ..tree import unstack
from ._copies import remarks_on_copies
from ._nesting import Nesting
from ._renaming import Rename, propose, renamed
from ._stored import as_stored, has_dtype_of
from ._whole_states import Pairs, beside, paired

STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)


def is_stored(x: Any) -> bool:
    """Whether a leaf is an array with elements, or a number. orbax stores no other arrays."""
    if isinstance(x, (np.ndarray, np.generic)) and not is_numeric_array(x):
        return False
    return isinstance(x, STORED) and getattr(x, "size", 1) > 0


def named(tree: PyTree) -> dict[Names, Any]:
    """List the arrays and numbers of a tree by their names; those in stacks for each parameter.

    Functions and strings are code, and are not stored.

    Raises:
        ValueError: if two leaves have the same names.
    """
    found = [(names or ("",), x) for names, x in named_leaves(unstack(tree)) if is_stored(x)]
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
    return {join(names): x for names, x in named(tree).items()}


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
        remarks: states that stay fresh because the checkpoint lacks some of the moments whose steps they count, or has
            several states for them, with different counts; states that are restored without such a count; fresh copies
            of restored parameters, such as the slow weights of `Lookahead`; and fields that hold optax's quantity.
    """

    restored: dict[str, str]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    proposed: dict[str, str] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        moved = {name: source for name, source in self.restored.items() if name != source}
        lines = [f"restored {len(self.restored)}, fresh {len(self.fresh)}, unused {len(self.unused)}"]
        lines += [f"  moved   {source} -> {name}" for name, source in moved.items()]
        lines += [f"  fresh   {name}" for name in self.fresh]
        lines += [f"  unused  {name}" for name in self.unused]
        lines += self.remarks
        lines += [f"Shapes agree with `rename={self.proposed}`."] if self.proposed else []
        return "\n".join(lines)


class Match(NamedTuple):
    """Which array of the checkpoint fills which leaf of the template: a `Report` with names that are not joined."""

    sources: dict[Names, Names]
    fresh: list[Names]
    unused: list[Names]
    proposed: dict[str, str]
    remarks: list[str]


def match(
    template: Template,
    leaves: Mapping[Names, Any],
    saved: Mapping[Names, Any],
    rename: Rename,
    strict: bool,
    are_equal: Callable[[list[Names]], bool],
) -> Match:
    """Decide which leaf of the template is filled from which array of the checkpoint.

    Equal names match. Without `strict`, names also match if they differ only in how the state of a transform is nested,
    their shapes are equal, and no other name is as near. `are_equal` reads and compares arrays of the checkpoint.

    Raises:
        ValueError: if `strict` and the names don't agree.
    """
    matching = _Matching(template, leaves, saved, strict, are_equal)
    old = _old_names(saved, rename)
    found = matching.pairs(old)
    fresh, unused = matching.without_partner(found.sources, old)
    sources = {name: source for name, source in found.sources.items() if name not in found.left_out}
    others = matching.without_partner(sources, old)
    if not fresh and not unused:
        return Match(sources, *others, {}, found.remarks)
    nesting = matching.nesting(old)
    proposed = matching.proposed(nesting, found, fresh, unused, rename)
    if strict:
        raise ValueError(_mismatch(list(map(join, fresh)), list(map(join, unused)), proposed))
    said = remarks_on_copies(nesting, leaves, sources) + _remarks_on_lists(nesting, leaves, old)
    return Match(sources, *others, proposed, found.remarks + said)


class _Matching(NamedTuple):
    """What names are matched by; the arguments are those of `match`."""

    template: Template
    leaves: Mapping[Names, Any]
    saved: Mapping[Names, Any]
    strict: bool
    are_equal: Callable[[list[Names]], bool]

    def nesting(self, old: Iterable[Names]) -> Nesting:
        return Nesting(self.template.tree, self.template.joined, self.leaves, old)

    def pairs(self, old: Mapping[Names, Names]) -> Pairs:
        """The pairs of names; `old` has the names in the checkpoint by what rules make of them."""
        leaves = self.leaves
        pairs = Pairs({name: name for name in leaves if name in old}, set(), [], set())
        if not self.strict and not len(pairs.sources) == len(leaves) == len(old):
            arrays = {name: self.saved[before] for name, before in old.items()}
            pairs = paired(self.nesting(old), leaves, arrays, lambda names: self.are_equal([old[x] for x in names]))
        return pairs._replace(sources={x: old[pairs.sources[x]] for x in leaves if x in pairs.sources})

    def without_partner(
        self, sources: Mapping[Names, Names], old: Mapping[Names, Names]
    ) -> tuple[list[Names], list[Names]]:
        """The names of the template, and those of the checkpoint, that are in no pair."""
        taken = set(sources.values())
        return [name for name in self.leaves if name not in sources], [x for x in old.values() if x not in taken]

    def proposed(
        self, nesting: Nesting, found: Pairs, fresh: list[Names], unused: list[Names], rename: Rename
    ) -> dict[str, str]:
        """The rules that would pair what has no partner, if there are such rules that change no other pair."""
        wanted = {name: self.leaves[name] for name in fresh if name not in found.refused}
        if not wanted or not unused:
            return {}
        in_states = {name: nesting.part(name) for name in self.leaves if nesting.place(name).rest}
        shared = beside(nesting, self.leaves)
        given = {name: self.saved[name] for name in unused}
        rules, more = propose(wanted, given, list(self.saved), shared, in_states, rename, self._fits)
        try:
            sources = self.pairs(_old_names(self.saved, rules)).sources if more else {}
        except ValueError:
            return {}
        is_right = {*found.sources.items(), *more} <= sources.items()
        return rules if is_right and _are_whole(sources, more, shared, in_states) else {}

    def _fits(self, source: Names, name: Names) -> bool:
        """Whether an array of the checkpoint has the shape and dtype of the leaf of this name, if there is one."""
        leaf, x = self.leaves.get(name), self.saved[source]
        return leaf is None or (tuple(np.shape(x)) == as_stored(leaf).shape and has_dtype_of(x, leaf))


def _are_whole(
    sources: Mapping[Names, Names],
    more: Iterable[tuple[Names, Names]],
    shared: Collection[Names],
    in_states: Mapping[Names, tuple[Names, Names]],
) -> bool:
    """Whether nothing stays fresh that parameters share, in states of which more leaves are filled."""
    states = {in_states[name][0] for name, _ in more if name in in_states and name not in shared}
    return all(name in sources or in_states[name][0] not in states for name in shared)


def _remarks_on_lists(nesting: Nesting, *both: Iterable[Names]) -> list[str]:
    """What to say of a list that has more or fewer entries than in the checkpoint, given the names in both."""
    ours, theirs = map(_lengths, both)
    changed = [x for x in ours if x in theirs and ours[x] != theirs[x] and x[-1] not in nesting.keyed]
    said = (
        "`{0}` has {1} entries, and {2} in the checkpoint. They are matched by index: if the first ones are new or "
        'gone, write `rename=lambda name: re.sub(r"\\b{3}\\.(\\d+)", lambda m: f"{3}.{{int(m[1]) + {4}}}", name)`.'
    )
    first = sorted(changed, key=lambda x: (len(x), x))[:1]  # the parameters, before their moments
    return [said.format(join(x), ours[x], theirs[x], x[-1], ours[x] - theirs[x]) for x in first]


def _lengths(names: Iterable[Names]) -> collections.Counter[Names]:
    """The number of entries of each list."""
    entries = {x[:i] for x in names for i in range(2, len(x) + 1) if x[i - 1].isdigit()}
    return collections.Counter(x[:-1] for x in entries)


def _old_names(saved: Iterable[Names], rename: Rename) -> dict[Names, Names]:
    """The names in the checkpoint by what the rules make of them."""
    if rename is None:
        return {name: name for name in saved}
    return {split(new): split(old) for new, old in renamed(map(join, saved), rename).items()}


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
