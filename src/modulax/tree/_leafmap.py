"""One function on many leaves, traced once per shape."""

import collections
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._support.arithmetic import at_least_float32, real_dtype

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


def map_arithmetic(
    rule: Callable[..., Sequence[Array]],
    numbers: Any,
    columns: Sequence[Sequence[Array]],
    like: Sequence[Sequence[Any]],
) -> list[list[Array]]:
    """`rule(numbers, *arrays)` on every leaf, computed in at least float32.

    Args:
        rule: a function of the numbers, in the dtype of the arithmetic, and of one array from each column.
        numbers: a tree of scalars that all leaves share.
        columns: for each argument of the rule its arrays, leaf by leaf.
        like: for each result of the rule the arrays whose dtypes it shall have, leaf by leaf.

    Returns:
        a column of arrays for each result.
    """

    def one(numbers: Any, arrays: Sequence[Array], examples: Sequence[Any]) -> list[Array]:
        dtype = at_least_float32(*(x.dtype for x in arrays))
        numbers = jtu.tree_map(lambda n: n.astype(real_dtype(dtype)) if _is_float(n) else n, numbers)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            results = rule(numbers, *(x.astype(dtype) for x in arrays))
        return [new.astype(example.dtype) for new, example in zip(results, examples, strict=True)]

    rows = list(zip(zip(*columns, strict=True), zip(*like, strict=True), strict=True))
    results = map_leaves(one, jtu.tree_map(jnp.asarray, numbers), rows)
    return [[row[i] for row in results] for i in range(len(like))]


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
