"""Norms with a lower bound, free of overflow and underflow and with finite derivatives."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, real_arrays
from .._support.arithmetic import abs_sq, at_least_float32, default_float, ratio, real_dtype, safe_sqrt
from .._support.checks import listing
from .._support.varying import cond

_MATRIX_ORDERS = (None, "fro", "f", "nuc", 1, -1, 2, -2, math.inf, -math.inf)


def safe_norm(
    x: ArrayLike,
    min_norm: ArrayLike,
    ord: int | float | str | None = None,
    axis: Axes = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    r"""Compute a norm with a lower bound, $\max(\lVert x \rVert, m)$, for use in a denominator.

    The derivative is zero where the norm is at most $m$, also at zero, where the derivative of a norm doesn't exist.
    The squares of the entries may overflow or underflow in the dtype; the norm doesn't.

    Args:
        x: numbers, real or complex.
        min_norm: $m$, lower bound: a number, or an array of the shape of the result.
        ord: order of the norm, as in `jax.numpy.linalg.norm`: for vectors a number, by default 2; for matrices 1, 2,
            `jnp.inf`, their negatives, `"nuc"`, or `"fro"`, the default.
        axis: one axis for vectors, two for matrices; None means all axes. Without `ord`, any number of axes is allowed,
            and the result is the Euclidean norm over all of them.
        keepdims: whether to keep the reduced axes with length one.

    Returns:
        Real numbers, in the precision of `x`.

    Raises:
        ValueError: if `ord` is not an order for this number of axes, `axis` is out of bounds, or `min_norm` has another
            shape.
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
    r"""Compute a root mean square with a lower bound, $\max\bigl(\sqrt{\tfrac1n \sum_i |x_i|^2}, m\bigr)$.

    The derivative is zero where the root is at most $m$, also at zero; see `safe_norm`.

    Args:
        x: numbers, real or complex. The root mean square of an empty array is zero.
        min_rms: $m$, lower bound.

    Returns:
        A real number, in the precision of `x`.

    Raises:
        ValueError: if `min_rms` is not a scalar.
    """
    dtype, x = _inexact(x)
    least = _least("safe_root_mean_squares", x, (), min_rms=min_rms)
    root = _euclidean(x, tuple(range(x.ndim)), count=max(x.size, 1)).reshape(())
    return _at_least(least, root).astype(dtype)


def _inexact(x: ArrayLike) -> tuple[Any, Array]:
    """Return the dtype of the norm, and the array in at least float32."""
    x = jnp.asarray(x)
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float())
    return real_dtype(x.dtype), x.astype(at_least_float32(x.dtype))


def _is_euclidean(ord: Any, axes: tuple[int, ...]) -> bool:
    """Whether the norm is the root of the sum of squares."""
    return ord is None or (len(axes), ord) in ((1, 2), (2, "fro"), (2, "f"))


def _check_order(ord: Any, axes: tuple[int, ...]) -> None:
    """Check that `ord` is an order of a vector norm or of a matrix norm."""
    if ord is None:
        return
    if len(axes) not in (1, 2):
        raise ValueError(
            f"`safe_norm(ord={ord!r})` needs one axis for vectors or two for matrices, got {len(axes)} axes."
        )
    if isinstance(ord, str) if len(axes) == 1 else ord not in _MATRIX_ORDERS:
        needed = "vectors must be a number" if len(axes) == 1 else f"matrices must be one of {listing(_MATRIX_ORDERS)}"
        raise ValueError(f"`safe_norm(ord=...)` of {needed}, got {ord!r}.")


def _least(owner: str, x: Array, shape: tuple[int, ...], **given: ArrayLike) -> Array:
    """Broadcast the lower bound to the shape of the result, after checking that it fits."""
    ((name, least),) = given.items()
    (least,) = real_arrays(owner, **given)
    if least.shape not in ((), shape):
        raise ValueError(f"`{owner}({name}=...)` must be a number or have shape {shape}, got {least.shape}.")
    return jnp.broadcast_to(least.astype(real_dtype(x.dtype)), shape)


def _at_least(least: Array, norm: Array) -> Array:
    """Apply the lower bound; at a tie the derivative is that of the bound, where `maximum` would average the two."""
    return jnp.where(norm <= least, least, norm)


def _largest(x: Array, axes: tuple[int, ...]) -> Array:
    """A divisor that keeps the squares of the entries from overflowing or underflowing."""
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    largest = [jnp.max(jnp.abs(part), axes, keepdims=True, initial=0) for part in parts]
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, largest))
    limits = jnp.finfo(largest.dtype)  # XLA may multiply by the reciprocal, which must stay normal
    return jnp.clip(largest, limits.tiny, limits.max / 8)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _euclidean(x: Array, axes: tuple[int, ...], count: int = 1) -> Array:
    """Root of the sum of squares divided by `count`, with the axes kept.

    The entries are read once, for three sums of squares: of the entries, and of them times a large and a small power of
    two. One of the three has neither overflowed nor lost what underflowed, for any entries. Division by the largest
    entry would read everything twice.
    """
    scale, square = _scaled(x, axes)
    return safe_sqrt(square / count) / scale


@_euclidean.defjvp
def _euclidean_jvp(axes, count, primals, tangents):
    (x,), (dx,) = primals, tangents
    # The scale is a constant, so that no other sum has a derivative: that of one that overflowed would be NaN.
    scale = jax.lax.stop_gradient(_scaled(x, axes)[0])
    root = safe_sqrt(_square(x, scale, axes) / count)
    unit = ratio(x * scale.astype(x.dtype), root.astype(x.dtype))
    return root / scale, jnp.sum((unit.conj() * dx).real, axes, keepdims=True) / count


def _scaled(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """A power of two, and the sum of the squares of the entries times it; the axes are kept."""
    limits = jnp.finfo(x.dtype)
    large = jnp.asarray(2.0 ** round(0.7 * limits.maxexp), limits.dtype)
    one = jnp.ones_like(large)
    # Of constants, XLA would make a product of their own, which overflows: (ax)(ax) = (xx)(aa).
    large, small = jax.lax.optimization_barrier((large, 1 / large))
    square = _square(x, one, axes)
    # From this sum on, squares that underflow are too few to be seen.
    is_small = square < max(math.prod(x.shape[a] for a in axes), 1) * (limits.tiny / limits.eps)
    is_large = jnp.isinf(square)

    def others(x: Array) -> tuple[Array, Array]:
        return _square(x, large, axes), _square(x, small, axes)

    def others_if_needed(x: Array) -> tuple[Array, Array]:
        return cond(jnp.any(is_small | is_large), lambda: others(x), lambda: (square, square))

    # XLA for accelerators makes the three in one kernel, XLA for CPU one after the other.
    of_small, of_large = jax.lax.platform_dependent(x, cpu=others_if_needed, default=others)
    scale = jnp.where(is_small, large, jnp.where(is_large, small, one))
    return scale, jnp.where(is_small, of_small, jnp.where(is_large, of_large, square))


def _square(x: Array, scale: Array, axes: tuple[int, ...]) -> Array:
    """The sum of the squared absolute values of the entries times a real scale, with the axes kept."""
    return jnp.sum(abs_sq(x * scale.astype(x.dtype)), axes, keepdims=True)


def _of_order(x: Array, ord: Any, axes: tuple[int, ...], least: Array) -> Array:
    """Any other norm, with the axes kept; where it is at most the lower bound, the bound without derivatives."""
    largest = jnp.ones_like(least) if ord == 0 else _largest(x, axes)  # ord 0 counts the non-zero entries
    unit = x / largest.astype(x.dtype)

    def norm(x: Array) -> Array:
        return largest * jnp.linalg.norm(x, ord, axes if len(axes) == 2 else axes[0], keepdims=True)

    is_small = norm(jax.lax.stop_gradient(unit)) <= least
    # Replace the argument too, not only the norm: its infinite derivative times the zero of `where` would be NaN.
    return jnp.where(is_small, jax.lax.stop_gradient(least), norm(jnp.where(is_small, jnp.ones_like(unit), unit)))
