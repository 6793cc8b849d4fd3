"""Dotted paths: the name of a leaf in error messages, rules, tables and checkpoints.

A path is the keys that lead to a leaf, joined by dots: `layers.0.weight`. It is the same for dicts, tuples, Equinox
modules and NNX variables; the box of a variable is not part of the path.
"""

import fnmatch
import re
import sys
from collections.abc import Container
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree


def join(names: tuple[str, ...]) -> str:
    r"""Join names to one path with dots; a dot within a name is written `\.`."""
    return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in names)


def split(name: str) -> tuple[str, ...]:
    """Split a path into its names; the inverse of `join`."""
    return tuple(re.sub(r"\\(.)", r"\1", key) for key in re.findall(r"(?:^|(?<=\.))((?:[^.\\]|\\.)*)(?=\.|$)", name))


class JoinedNames(str):
    """A dict key that is a whole path, as written by `join`; in a longer path it counts as the names that it joins."""


def is_joined(key: Any) -> bool:
    """Whether a key in a JAX key path is a whole path."""
    return isinstance(getattr(key, "key", None), JoinedNames)


def _key_names(key: Any) -> tuple[str, ...]:
    """The names in one key of a JAX key path."""
    if is_joined(key):
        return split(key.key)
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return (str(getattr(key, attribute)),)
    return (str(key),)


def key_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of the keys in a JAX key path."""
    return tuple(name for key in path for name in _key_names(key))


def dotted(path: tuple[Any, ...]) -> str:
    """The dotted form of a JAX key path."""
    return ".".join(key_names(path))


def _is_none(x: Any) -> bool:
    return x is None


def named_leaves(tree: PyTree, *, with_none: bool = False) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of a tree with the names of their keys, in JAX's order; with None as a leaf if `with_none`."""
    # A tree can hold NNX variables only if flax was imported, so it need not be imported here.
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        found = jtu.tree_leaves_with_path(tree, is_leaf=_is_none if with_none else None)
        return [(key_names(path), leaf) for path, leaf in found]
    out = []
    for path, leaf in jtu.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, nnx.Variable) or _is_none(x)):
        if isinstance(leaf, nnx.Variable):
            inside = jtu.tree_leaves_with_path(leaf, is_leaf=_is_none if with_none else None)
            out += [(key_names(path + rest[1:]), x) for rest, x in inside]
        elif with_none or leaf is not None:
            out.append((key_names(path), leaf))
    return out


def leaves_with_paths(tree: PyTree, *, with_none: bool = False) -> list[tuple[str, Any]]:
    """Return the leaves of a tree with their dotted paths, in JAX's order; with None as a leaf if `with_none`."""
    return [(".".join(names), leaf) for names, leaf in named_leaves(tree, with_none=with_none)]


def leaf_paths(tree: PyTree, *, with_none: bool = False) -> list[str]:
    """Return the dotted path of every leaf, in JAX's order."""
    return [path for path, _ in leaves_with_paths(tree, with_none=with_none)]


def matches(path: str, pattern: str) -> bool:
    """Whether a shell-style pattern matches a dotted path.

    `*` also matches dots, and a pattern that starts with `*.` matches at the root too: `*.bias` matches `bias` and
    `layers.0.bias`.
    """
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase("." + path, pattern)


def longest_prefix(path: str, known: Container[Any]) -> str | None:
    """Return the longest prefix of a dotted path that is known, down to the root (the empty path); or None."""
    while path not in known:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path
