"""One function on many leaves, traced once per shape."""

import collections
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu

CHUNK = 8


def map_leaves(function: Callable[..., Any], shared: Any, columns: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`[function(shared, *column) for column in columns]`, with a small program.

    Columns of equal structure, shapes and dtypes are traced once, and called in groups, so that a tree of a thousand
    leaves costs about as much to trace as its few distinct shapes. What runs is the same.
    """
    one = jax.jit(function)

    @jax.jit
    def many(shared: Any, group: list[Any]) -> list[Any]:
        return [one(shared, *column) for column in group]

    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, column in enumerate(columns):
        leaves, treedef = jtu.tree_flatten(column)
        kinds[treedef, tuple((x.shape, x.dtype) for x in leaves)].append(i)
    out: list[Any] = [None] * len(columns)
    for indices in kinds.values():
        while len(indices) >= 2 * CHUNK or len(indices) == CHUNK:
            group, indices = indices[:CHUNK], indices[CHUNK:]
            for i, result in zip(group, many(shared, [columns[i] for i in group]), strict=True):
                out[i] = result
        for i in indices:
            out[i] = one(shared, *columns[i])
    return out
