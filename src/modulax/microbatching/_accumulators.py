"""How the results of the parts become one result."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._support.arithmetic import at_least_float32
from ..tree._paths import leaves_with_paths


class AccumulationType(enum.Enum):
    """How the results of the microbatches become one result.

    Floating results are added up in at least float32; what is returned has the dtype that they came with.
    """

    MEAN = enum.auto()
    """Their mean, over all microbatches that the batch has."""
    SUM = enum.auto()
    """Their sum."""
    RUNNING_MEAN = enum.auto()
    """Their mean, over the microbatches that were computed: `num_real_microbatches`, where that is given."""
    CONCAT = enum.auto()
    """One behind the other along the first axis, each row where its example stands in the batch."""


@dataclasses.dataclass(frozen=True)
class Accumulator:
    r"""A way of your own to make one result of the results $x_0, x_1, \dots$ of the microbatches.

        carry = init(shapes of x_0)
        for i in range(n):
            carry = update(carry, x_i, i)
        return finalize(carry)

    Args:
        init: from the shapes and dtypes of a result, what is carried from part to part.
        update: from what is carried, the result of a part and its number, what is carried on.
        finalize: from what is carried at the end, the result.
        aggregate: from the results of each example in a part, on a leading axis, the result of the part; `micro_vmap`
            needs it.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, Any], PyTree]
    finalize: Callable[[PyTree], PyTree]
    aggregate: Callable[[PyTree], PyTree]


@dataclasses.dataclass(frozen=True)
class _OfLeaf:
    """An accumulator of one array."""

    init: Callable[[Any], Array]
    update: Callable[[Array, Array, Array], Array]
    finalize: Callable[[Array], Array]
    aggregate: Callable[[Array], Array]


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _wide(x: Any) -> Any:
    return at_least_float32(x.dtype) if _is_inexact(x) else x.dtype


def _zeros(value: Any) -> Array:
    return jnp.zeros_like(value, dtype=_wide(value))


def _add(carry: Array, value: Array, i: Array) -> Array:
    del i
    return carry + value.astype(carry.dtype)


def _sum_of_rows(values: Array) -> Array:
    is_flag = values.dtype == bool
    return jnp.sum(values, axis=0, dtype=None if is_flag else _wide(values))


def _mean_of_rows(values: Array) -> Array:
    return jnp.mean(values, axis=0, dtype=_wide(values))


def _running_mean(carry: Array, value: Array, i: Array) -> Array:
    weight = (1 / (i + 1).astype(carry.real.dtype)).astype(carry.dtype)
    return (1 - weight) * carry + weight * value.astype(carry.dtype)


def _of_leaf(kind: AccumulationType, n: int) -> _OfLeaf:
    def columns(value: Any) -> Array:
        if value.ndim == 0:
            return jnp.zeros(n, value.dtype)
        shape = (value.shape[0], n, *value.shape[1:])
        return jnp.broadcast_to(jnp.expand_dims(jnp.zeros_like(value), 1), shape)

    def put(carry: Array, value: Array, i: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(carry, value, i, axis=min(value.ndim, 1))

    def one_behind_the_other(carry: Array) -> Array:
        return carry if carry.ndim < 2 else carry.reshape(-1, *carry.shape[2:])

    match kind:
        case AccumulationType.SUM:
            return _OfLeaf(_zeros, _add, lambda carry: carry, _sum_of_rows)
        case AccumulationType.MEAN:
            return _OfLeaf(_zeros, _add, lambda carry: carry / n, _mean_of_rows)
        case AccumulationType.RUNNING_MEAN:
            return _OfLeaf(_zeros, _running_mean, lambda carry: carry, _mean_of_rows)
        case AccumulationType.CONCAT:
            return _OfLeaf(columns, put, one_behind_the_other, lambda values: values)


def _lifted(owner: str, kind: AccumulationType, results: PyTree, n: int) -> Accumulator:
    """The accumulator of a tree of arrays, which returns them in the dtypes of `results`."""
    if kind in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN):
        for path, x in leaves_with_paths(results):
            if not _is_inexact(x):
                at = f" at `{path}`" if path else ""
                raise ValueError(
                    f"`{owner}(accumulator=...)`: `{kind}` is for floating results, and what the function returns has "
                    f"dtype {x.dtype}{at}. Take `AccumulationType.SUM` or `CONCAT` for it; a tree of them, of the "
                    f"structure of what the function returns, has one for each."
                )
    leaf = _of_leaf(kind, n)

    def finalize(carry: PyTree) -> PyTree:
        def one(c: Array, result: Any) -> Array:
            x = leaf.finalize(c)
            return x.astype(result.dtype) if _is_inexact(result) else x

        return jtu.tree_map(one, carry, results)

    return Accumulator(
        init=lambda values: jtu.tree_map(leaf.init, values),
        update=lambda carry, values, i: jtu.tree_map(lambda c, v: leaf.update(c, v, i), carry, values),
        finalize=finalize,
        aggregate=lambda values: jtu.tree_map(leaf.aggregate, values),
    )


def accumulator_of(owner: str, accumulator: PyTree, results: PyTree, n: int) -> Accumulator:
    """One accumulator for the whole result of a part.

    Args:
        owner: the function that it was given to, for errors.
        accumulator: an `Accumulator`, an `AccumulationType`, or a tree of them, of the result's structure or a prefix.
        results: the shapes and dtypes of a result.
        n: the number of parts.
    """

    def one(kind: Any, below: PyTree) -> Accumulator:
        if isinstance(kind, Accumulator):
            return kind
        if isinstance(kind, AccumulationType):
            return _lifted(owner, kind, below, n)
        kinds = ", ".join(f"`{k}`" for k in AccumulationType)
        raise ValueError(f"`{owner}(accumulator=...)` holds {kinds} or an `Accumulator`, got {kind!r}.")

    try:
        jtu.tree_structure(accumulator).flatten_up_to(results)
    except ValueError as error:
        raise ValueError(
            f"`{owner}(accumulator=...)` must be one for all, or a tree of the structure of the function's result or a "
            f"prefix of it. The result is {jtu.tree_structure(results)}, the tree {jtu.tree_structure(accumulator)}."
        ) from error
    parts = jtu.tree_map(one, accumulator, results)
    return Accumulator(
        init=lambda values: jtu.tree_map(lambda part, v: part.init(v), parts, values),
        update=lambda carry, values, i: jtu.tree_map(lambda part, c, v: part.update(c, v, i), parts, carry, values),
        finalize=lambda carry: jtu.tree_map(lambda part, c: part.finalize(c), parts, carry),
        aggregate=lambda values: jtu.tree_map(lambda part, v: part.aggregate(v), parts, values),
    )
