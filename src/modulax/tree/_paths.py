"""Dotted paths: the name of a leaf in error messages, rules, tables and checkpoints.

A path is the keys that lead to a leaf, joined by dots: `layers.0.weight`. It is the same for dicts, tuples, Equinox
modules and NNX variables; the box of a variable is not part of the path.
"""

import fnmatch
import re
import sys
from collections.abc import Container
from typing import Any, TypeAlias

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.optree_nodes import entry_of

Names: TypeAlias = tuple[str, ...]
"""The names of the keys that lead to a leaf. Trees are paired by them: `("a.b",)` and `("a", "b")` are two leaves."""


def join(names: Names) -> str:
    r"""Join names to one path with dots; a dot within a name is written `\.`."""
    return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in names)


def split(name: str) -> Names:
    """Split a path into its names; the inverse of `join`, but for no names at all, which are one empty name here."""
    names = [""]
    for piece in re.findall(r"\\.|[^\\]", name, re.DOTALL):
        if piece == ".":
            names.append("")
        else:
            names[-1] += piece[-1]
    return tuple(names)


class JoinedNames(str):
    """A dict key that is a whole path, as written by `join`; in a longer path it counts as the names that it joins."""


def is_joined(key: Any) -> bool:
    """Whether a key in a JAX key path is a whole path."""
    return isinstance(getattr(key, "key", None), JoinedNames)


def _key_names(key: Any) -> Names:
    """The names in one key of a JAX key path."""
    if is_joined(key):
        return split(key.key)
    return (str(entry_of(key)),)


def key_names(path: tuple[Any, ...]) -> Names:
    """The names of the keys in a JAX key path."""
    return tuple(name for key in path for name in _key_names(key))


def dotted(path: tuple[Any, ...]) -> str:
    """The dotted form of a JAX key path."""
    return ".".join(key_names(path))


def _is_none(x: Any) -> bool:
    return x is None


def is_plain(x: Any, *kinds: type) -> bool:
    """Whether `x` is a container of one of these types, and not a NamedTuple, which is a record."""
    return isinstance(x, kinds) and not hasattr(x, "_fields")


def named_leaves(tree: PyTree, *, with_none: bool = False) -> list[tuple[Names, Any]]:
    """Return the leaves of a tree with the names of their keys, in JAX's order; with None as a leaf if `with_none`."""
    is_none = _is_none if with_none else None
    # A tree can hold NNX variables only if flax was imported, so it need not be imported here.
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return [(key_names(path), leaf) for path, leaf in jtu.tree_leaves_with_path(tree, is_leaf=is_none)]

    def stops(x: Any) -> bool:
        return isinstance(x, nnx.Variable) or (with_none and x is None)

    out = []
    for path, leaf in jtu.tree_leaves_with_path(tree, is_leaf=stops):
        if isinstance(leaf, nnx.Variable):
            inside = jtu.tree_leaves_with_path(leaf, is_leaf=is_none)
            # The first key inside a variable is that of its box, which is not part of a path.
            out += [(key_names(path + rest[1:]), x) for rest, x in inside]
        else:
            out.append((key_names(path), leaf))
    return out


def leaves_by_names(owner: str, tree: PyTree, *, with_none: bool = False) -> dict[Names, Any]:
    """Return the leaves of a tree by the names of their keys, in JAX's order.

    Raises:
        ValueError: if two leaves have the same names, as those of the keys `1` and `"1"` of an `OrderedDict`.
    """
    leaves: dict[Names, Any] = {}
    for names, leaf in named_leaves(tree, with_none=with_none):
        if names in leaves:
            raise ValueError(
                f"`{owner}`: two leaves have the path `{'.'.join(names)}`, so trees of other structures cannot be "
                f"paired with them. Rename one."
            )
        leaves[names] = leaf
    return leaves


def nodes_without_leaves(tree: PyTree) -> list[Names]:
    """Return the names of the outermost parts of a tree that have no leaf, such as a layer without parameters."""
    nodes = jtu.tree_leaves_with_path(tree, is_leaf=lambda x: not jtu.tree_leaves(x))
    return [key_names(path) for path, x in nodes if not jtu.tree_leaves(x)]


def leaves_with_paths(tree: PyTree, *, with_none: bool = False) -> list[tuple[str, Any]]:
    """Return the leaves of a tree with their dotted paths, in JAX's order; with None as a leaf if `with_none`."""
    return [(".".join(names), leaf) for names, leaf in named_leaves(tree, with_none=with_none)]


def leaf_paths(tree: PyTree, *, with_none: bool = False) -> list[str]:
    """Return the dotted path of every leaf, in JAX's order."""
    return [path for path, _ in leaves_with_paths(tree, with_none=with_none)]


def as_pattern(path: str) -> str:
    """The shell-style pattern that matches this path alone, where no name holds `*` or `?`."""
    return path.replace("[", "[[]")  # which begins a set of characters


def matches(path: str, pattern: str, separator: str = ".") -> bool:
    """Whether a shell-style pattern matches a path.

    `*` also matches separators, and a pattern that starts with `*.` matches at the root too: `*.bias` matches `bias`
    and `layers.0.bias`.
    """
    # `fnmatch.fnmatch` ignores case on Windows.
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(separator + path, pattern)


def longest_prefix(names: Names, known: Container[Names]) -> Names | None:
    """Return the most of the first names that are known, down to none (the root); or None."""
    while names not in known:
        if not names:
            return None
        names = names[:-1]
    return names
