"""Dotted paths: one name for a leaf in errors, rules, tables and checkpoints.

A path is the keys that lead to a leaf, joined by dots: `layers.0.weight`. It reads the same whether the tree is made
of dicts, tuples, Equinox modules or NNX variables (the box of a variable is no part of the path).
"""

import fnmatch
import re
import sys
from collections.abc import Container
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree


def join(names: tuple[str, ...]) -> str:
    r"""The names of a path as one, joined by dots; a dot inside of a name is written `\.`."""
    return ".".join(re.sub(r"([.\\])", r"\\\1", name) for name in names)


def split(name: str) -> tuple[str, ...]:
    """The names that `join` made one of."""
    return tuple(re.sub(r"\\(.)", r"\1", key) for key in re.findall(r"(?:^|(?<=\.))((?:[^.\\]|\\.)*)(?=\.|$)", name))


class JoinedNames(str):
    """A key that is a whole path, as `join` writes it: in a longer path it reads as the names that it joins."""


def is_joined(key: Any) -> bool:
    """Whether a key in one of JAX's key paths is a whole path."""
    return isinstance(getattr(key, "key", None), JoinedNames)


def _key_names(key: Any) -> tuple[str, ...]:
    if is_joined(key):
        return split(key.key)
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return (str(getattr(key, attribute)),)
    return (str(key),)


def key_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of the keys in one of JAX's key paths."""
    return tuple(name for key in path for name in _key_names(key))


def dotted(path: tuple[Any, ...]) -> str:
    """The dotted form of one of JAX's key paths."""
    return ".".join(key_names(path))


def _is_none(x: Any) -> bool:
    return x is None


def named_leaves(tree: PyTree, *, with_none: bool = False) -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of a tree with the names of the keys that lead to them, in JAX's order; on request also None."""
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
    """The leaves of a tree with their dotted paths, in JAX's order; on request also where a leaf is absent (None)."""
    return [(".".join(names), leaf) for names, leaf in named_leaves(tree, with_none=with_none)]


def leaf_paths(tree: PyTree, *, with_none: bool = False) -> list[str]:
    """The dotted path of every leaf, in JAX's order."""
    return [path for path, _ in leaves_with_paths(tree, with_none=with_none)]


def matches(path: str, pattern: str) -> bool:
    """Whether a shell-style pattern fits a dotted path.

    `*` also spans dots, and a pattern that begins with `*.` fits at the root too: `*.bias` fits `bias` and
    `layers.0.bias`.
    """
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase("." + path, pattern)


def longest_prefix(path: str, known: Container[Any]) -> str | None:
    """The longest beginning of a dotted path that is known, down to the root (the empty path); or None."""
    while path not in known:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path
