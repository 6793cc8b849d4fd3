"""Norms with a least value: they neither overflow nor vanish on the way, and their derivatives are finite."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, real
from .._support.arithmetic import at_least_float32, default_float, real_dtype, safe_sqrt
from .._support.checks import listing

_MATRIX_ORDERS = (None, "fro", "f", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def safe_norm(
    x: ArrayLike,
    min_norm: ArrayLike,
    ord: int | float | str | None = None,
    axis: Axes = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    r"""The norm of an array, but at least a given number: $\max(\lVert x \rVert, m)$.

    Use it where something is divided by a norm. The derivative is zero where the norm is at most $m$, also at zero,
    where that of a norm does not exist. Whether squares of the entries are too large or too small for the dtype does
    not matter.

    Args:
        x: numbers, real or complex.
        min_norm: $m$, a number, or an array of the shape of the result.
        ord: the order of the norm, as in `jax.numpy.linalg.norm`: for vectors a number, where None is 2; for matrices
            1, 2, `jnp.inf`, their negatives, `"fro"`, which None is, or `"nuc"`.
        axis: one axis for vectors, two for matrices; None for all of them. Without an order, there may be any number of
            axes: the norm is the Euclidean one of all entries along them.
        keepdims: whether the axes stay, with length one.

    Returns:
        Real numbers, in the precision of `x`.
    """
    dtype, x = _inexact(x)
    axes = axes_of("safe_norm", axis, "x", x)
    _check_order(ord, axes)
    kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    rest = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    least = _least("safe_norm", x, kept if keepdims else rest, min_norm=min_norm).reshape(kept)
    norm = _euclidean(x, axes) if _is_euclidean(ord, axes) else _of_order(x, ord, axes, least)
    norm = _at_least(least, norm).astype(dtype)
    return norm if keepdims else jnp.squeeze(norm, axes)


def safe_root_mean_squares(x: ArrayLike, min_rms: ArrayLike) -> Float[Array, ""]:
    r"""The root of the mean square, but at least a given number: $\max\bigl(\sqrt{\tfrac1n \sum_i |x_i|^2}, m\bigr)$.

    The derivative is zero where the root is at most $m$, also at zero; see `safe_norm`.

    Args:
        x: numbers, real or complex. Of no numbers the root is zero.
        min_rms: $m$.

    Returns:
        A real number, in the precision of `x`.
    """
    dtype, x = _inexact(x)
    least = _least("safe_root_mean_squares", x, (), min_rms=min_rms)
    root = _euclidean(x, tuple(range(x.ndim)), count=max(x.size, 1)).reshape(())
    return _at_least(least, root).astype(dtype)


def _inexact(x: ArrayLike) -> tuple[Any, Array]:
    """The dtype of the norm, and the array in at least float32."""
    x = jnp.asarray(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float())
    return real_dtype(x.dtype), x.astype(at_least_float32(x.dtype))


def _is_euclidean(ord: Any, axes: tuple[int, ...]) -> bool:
    return ord is None or (len(axes), ord) in ((1, 2), (2, "fro"), (2, "f"))


def _check_order(ord: Any, axes: tuple[int, ...]) -> None:
    """Refuses what is no order of a norm of vectors or of matrices."""
    if ord is None:
        return
    if len(axes) not in (1, 2):
        raise ValueError(f"`safe_norm(ord={ord!r})` needs one axis for vectors or two for matrices, got {len(axes)}.")
    if isinstance(ord, str) if len(axes) == 1 else ord not in _MATRIX_ORDERS:
        needed = "vectors must be a number" if len(axes) == 1 else f"matrices must be one of {listing(_MATRIX_ORDERS)}"
        raise ValueError(f"`safe_norm(ord=...)` of {needed}, got {ord!r}.")


def _least(owner: str, x: Array, shape: tuple[int, ...], **given: ArrayLike) -> Array:
    """The least value, in the shape of the result; refused if it does not fit."""
    ((name, least),) = given.items()
    (least,) = real(owner, **given)
    if least.shape not in ((), shape):
        raise ValueError(f"`{owner}({name}=...)` must be a number or have the shape {shape}, got {least.shape}.")
    return jnp.broadcast_to(least.astype(real_dtype(x.dtype)), shape)


def _at_least(least: Array, norm: Array) -> Array:
    """The norm, with the derivative of the least value where it is at most that: `maximum` would halve it."""
    return jnp.where(norm <= least, least, norm)


def _largest(x: Array, axes: tuple[int, ...]) -> Array:
    """What the entries are divided by, so that their squares neither overflow nor vanish."""
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    largest = [jnp.max(jnp.abs(part), axes, keepdims=True, initial=0) for part in parts]
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, largest))
    limits = jnp.finfo(largest.dtype)  # beyond which the reciprocal, which XLA may take, would vanish or overflow
    return jnp.clip(largest, limits.tiny, limits.max / 8)


def _euclidean(x: Array, axes: tuple[int, ...], count: int = 1) -> Array:
    """The root of the sum of squares over a number, with the axes kept."""
    largest = _largest(x, axes)
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    square = sum(jnp.sum(jnp.square(part / largest), axes, keepdims=True) for part in parts)
    return largest * safe_sqrt(square / count)


def _of_order(x: Array, ord: Any, axes: tuple[int, ...], least: Array) -> Array:
    """Another norm, with the axes kept; where it is at most the least value, that value without derivatives."""
    largest = jnp.ones_like(least) if ord == 0 else _largest(x, axes)  # the number of entries that are not zero
    unit = x / largest.astype(x.dtype)

    def norm(x: Array) -> Array:
        return largest * jnp.linalg.norm(x, ord, axes if len(axes) == 2 else axes[0], keepdims=True)

    is_small = norm(jax.lax.stop_gradient(unit)) <= least
    # Not only the norm but what it is taken of is replaced: a derivative that is not finite times zero would be NaN.
    return jnp.where(is_small, jax.lax.stop_gradient(least), norm(jnp.where(is_small, jnp.ones_like(unit), unit)))
