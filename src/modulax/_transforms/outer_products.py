"""Averages of the outer products of matrices, and matrices in the bases of both sides: what SOAP and others share.

All functions take matrices on the last two axes of an array. A side of a matrix is its rows, `"left"`, or its columns,
`"right"`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike

from .._support.arithmetic import abs_sq, at_least_float32, common_dtype, dtype_for, in_dtype, safe_sqrt
from ..linalg._eigenbasis import outer_product, scale
from ..linalg._products import Side, applied
from ..numerics._norms import safe_norm


def root_mean_square(x: Array) -> Array:
    """Return that of each matrix, or of a vector."""
    axes = tuple(range(max(x.ndim - 2, 0), x.ndim))
    return safe_norm(x, 0.0, axis=axes, keepdims=True) / math.sqrt(max(math.prod(x.shape[-2:]), 1))


def norm(x: Array, axis: int | tuple[int, ...] = (-2, -1)) -> Array:
    """Return the norm of each matrix, or those of its rows or columns, as an array with the same axes."""
    return safe_sqrt(jnp.sum(abs_sq(x), axis=axis, keepdims=True))


def zero_products(x: Array, dtype: DTypeLike | None, longest: int | None = None) -> tuple[Any, Any]:
    """Return zeros in the shapes of the outer products of an array, for the left side and the right one.

    Args:
        x: the array.
        dtype: their dtype; None for at least float32.
        longest: the longest side that has them, without which there is None; any if None.
    """
    kept = at_least_float32(x.dtype) if dtype is None else dtype_for(x, dtype) or x.dtype
    left, right = (
        jnp.zeros((*x.shape[:-2], n, n), kept) if longest is None or n <= longest else None for n in x.shape[-2:]
    )
    return left, right


def average(decay: Array, total: Array, x: Array) -> Array:
    """Return an exponential average, as `moment` does, which takes longer to trace."""
    return _weighted(decay, total, jax.lax.sub(np.ones((), decay.dtype), decay), x)


def accumulated(decay: Array, total: Array, x: Array) -> Array:
    """Return the average of what was added, or the sum where the decay rate is one."""
    one = np.ones((), decay.dtype)
    rest = jax.lax.select(jax.lax.lt(decay, one), jax.lax.sub(one, decay), jax.lax.full_like(decay, 1))
    return _weighted(decay, total, rest, x)


def _weighted(decay: Array, total: Array, rest: Array, x: Array) -> Array:
    dtype = common_dtype(total.dtype, x.dtype)
    return jax.lax.add(scale(in_dtype(total, dtype), decay), scale(in_dtype(x, dtype), rest))


def outer_products(
    decay: Array, g: Array, s: Any, left_root: Array | None = None, right_root: Array | None = None
) -> tuple[Array | None, Array | None]:
    """Return the averages or sums of outer products, `left` and `right`, with those of one more gradient.

    Args:
        decay: the decay rate; one for sums.
        g: the gradient.
        s: the state, in which either may be None.
        left_root: what is between the matrices in the products of the right side, as in KL-Shampoo.
        right_root: what is between them in those of the left side.
    """

    def added(total: Array | None, x: Array, side: Side) -> Array | None:
        if total is None:
            return None
        return accumulated(decay, total, outer_product(in_dtype(x, common_dtype(x.dtype, total.dtype)), side))

    left = added(s.left, applied(g, right_root, "right"), "left")
    return left, added(s.right, applied(g, left_root, "left"), "right")
