"""Accumulators: how the results of the microbatches are combined."""

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._support.arithmetic import at_least_float32
from ..tree._paths import leaves_with_paths


class AccumulationType(enum.Enum):
    """How the results of the microbatches are combined.

    Floating-point results are accumulated in at least float32 and returned in their own dtype.
    """

    MEAN = enum.auto()
    """The mean over all microbatches of the batch."""
    SUM = enum.auto()
    """The sum; of booleans, the number of true ones."""
    RUNNING_MEAN = enum.auto()
    """The mean over the microbatches that were computed: the first `num_real_microbatches`, if that is given."""
    CONCAT = enum.auto()
    """Concatenation along the first axis, with the rows in the order of the examples in the batch."""


@dataclasses.dataclass(frozen=True)
class Accumulator:
    r"""A custom way to combine the results $x_0, x_1, \dots$ of the microbatches.

        carry = init(shapes of x_0)
        for i in range(n):
            carry = update(carry, x_i, i)
        return finalize(carry)

    Args:
        init: function of the shapes and dtypes of a result that returns the initial carry.
        update: function of the carry, the result of a microbatch and its index that returns the new carry.
        finalize: function of the last carry that returns the result.
        aggregate: function of the per-example results of a microbatch, with the examples on a leading axis, that
            returns the result of the microbatch; used by `micro_vmap`.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, Any], PyTree]
    finalize: Callable[[PyTree], PyTree]
    aggregate: Callable[[PyTree], PyTree]


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _wide(x: Any) -> Any:
    """The dtype to accumulate in. Flags are counted: their own sum would be whether any is set."""
    if x.dtype == bool:
        return jnp.result_type(int)
    return at_least_float32(x.dtype) if _is_inexact(x) else x.dtype


def _zeros(value: Any) -> Array:
    return jnp.zeros_like(value, dtype=_wide(value))


def _add(carry: Array, value: Array, i: Array) -> Array:
    del i
    return carry + value.astype(carry.dtype)


def _mean_of_rows(values: Array) -> Array:
    return jnp.mean(values, axis=0, dtype=_wide(values))


def _running_mean(carry: Array, value: Array, i: Array) -> Array:
    weight = (1 / (i + 1).astype(carry.real.dtype)).astype(carry.dtype)
    return (1 - weight) * carry + weight * value.astype(carry.dtype)


def _of_array(kind: AccumulationType, n: int, result: Any) -> Accumulator:
    """The accumulator of an array for `n` microbatches, which returns the dtype of `result`."""

    def narrow(carry: Array) -> Array:
        return carry.astype(result.dtype) if _is_inexact(result) else carry

    match kind:
        case AccumulationType.SUM:
            return Accumulator(_zeros, _add, narrow, lambda values: jnp.sum(values, axis=0, dtype=_wide(values)))
        case AccumulationType.MEAN:
            return Accumulator(_zeros, _add, lambda carry: narrow(carry / n), _mean_of_rows)
        case AccumulationType.RUNNING_MEAN:
            return Accumulator(_zeros, _running_mean, narrow, _mean_of_rows)
        case AccumulationType.CONCAT:
            return _concatenation(n)


def _concatenation(n: int) -> Accumulator:
    """The accumulator of an array for `CONCAT`.

    Microbatch i holds the examples i, i + n, i + 2n, …, so it is written to column i of an array whose rows are the
    places in a microbatch. Flattened, the examples are back in the order of the batch.
    """

    def columns(value: Any) -> Array:
        if value.ndim == 0:
            return jnp.zeros(n, value.dtype)
        shape = (value.shape[0], n, *value.shape[1:])
        return jnp.broadcast_to(jnp.expand_dims(jnp.zeros_like(value), 1), shape)

    def put(carry: Array, value: Array, i: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(carry, value, i, axis=min(value.ndim, 1))

    def flat(carry: Array) -> Array:
        return carry if carry.ndim < 2 else carry.reshape(-1, *carry.shape[2:])

    return Accumulator(columns, put, flat, lambda values: values)


def _check_means(owner: str, kind: AccumulationType, results: PyTree) -> None:
    """Raise an error for the mean of anything but floating-point numbers."""
    if kind in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN):
        for path, x in leaves_with_paths(results):
            if not _is_inexact(x):
                at = f" at `{path}`" if path else ""
                raise ValueError(
                    f"`{owner}(accumulator=...)`: `{kind}` is for floating-point results, but the function returns "
                    f"dtype {x.dtype}{at}. Use `AccumulationType.SUM` or `CONCAT` there: the accumulator may be a tree "
                    f"with the structure of the result."
                )


def accumulator_of(owner: str, accumulator: PyTree, results: PyTree, n: int) -> Accumulator:
    """Build one accumulator for the whole result of a microbatch.

    Args:
        owner: the function that the accumulator was passed to, for error messages.
        accumulator: an `Accumulator`, an `AccumulationType`, or a tree of them with the structure of the result or a
            prefix of it.
        results: shapes and dtypes of a result.
        n: number of microbatches.

    Raises:
        ValueError: if the accumulator is none of these, or a mean is requested for integers.
    """

    def parts_of(kind: Any, below: PyTree) -> PyTree:
        """An accumulator of a user, or one of ours for each array below."""
        if isinstance(kind, Accumulator):
            return kind
        if isinstance(kind, AccumulationType):
            _check_means(owner, kind, below)
            return jtu.tree_map(functools.partial(_of_array, kind, n), below)
        kinds = ", ".join(f"`{k}`" for k in AccumulationType)
        raise ValueError(f"`{owner}(accumulator=...)` must be {kinds} or an `Accumulator`, got {kind!r}.")

    try:
        jtu.tree_structure(accumulator).flatten_up_to(results)
    except ValueError as error:
        raise ValueError(
            f"`{owner}(accumulator=...)` must be a single accumulator, or a tree with the structure of the function's "
            f"result or a prefix of it. The result has the structure {jtu.tree_structure(results)}, the accumulator "
            f"{jtu.tree_structure(accumulator)}."
        ) from error
    parts = jtu.tree_map(parts_of, accumulator, results)
    return Accumulator(
        init=lambda values: jtu.tree_map(lambda part, v: part.init(v), parts, values),
        update=lambda carry, values, i: jtu.tree_map(lambda part, c, v: part.update(c, v, i), parts, carry, values),
        finalize=lambda carry: jtu.tree_map(lambda part, c: part.finalize(c), parts, carry),
        aggregate=lambda values: jtu.tree_map(lambda part, v: part.aggregate(v), parts, values),
    )
