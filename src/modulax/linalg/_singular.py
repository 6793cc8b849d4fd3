"""Singular vectors with finite derivatives, even where singular values coincide."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from .._support.arithmetic import at_least_float32
from ._products import adjoint


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def leading_directions(
    x: Inexact[Array, "*batch m n"], rank: int, right: bool = False
) -> Inexact[Array, "*batch side rank"]:
    """Compute the singular vectors of the largest singular values, as orthonormal columns.

    The derivative is not defined along directions whose singular values coincide; these components are set to zero, so
    that it is finite even for a zero matrix. The decomposition is done in at least float32.

    Args:
        x: a matrix, or a batch of them.
        rank: number of singular vectors, at most the smaller side of the matrix.
        right: whether to return right singular vectors, which span the rows, instead of left ones.
    """
    return _decomposition(x, right)[0][..., :rank].astype(x.dtype)


def _decomposition(x: Array, right: bool) -> tuple[Array, Array, Array]:
    """The SVD of the matrix, or of its adjoint."""
    u, s, vh = jnp.linalg.svd(x.astype(at_least_float32(x.dtype)), full_matrices=False)
    return (adjoint(vh), s, adjoint(u)) if right else (u, s, vh)


@leading_directions.defjvp
def _leading_directions_jvp(rank, right, primals, tangents):
    (x,), (dx,) = primals, tangents
    u, s, vh = _decomposition(x, right)
    s = s.astype(u.dtype)
    dx = (adjoint(dx) if right else dx).astype(u.dtype)
    inner = adjoint(u) @ dx @ adjoint(vh)
    # First the rotation within the span of the vectors, then the part that leaves it.
    turning = inner * s[..., None, :] + s[..., :, None] * adjoint(inner)
    # Not the difference of the squares: compiled to fused operations, it is not exactly zero for a value and itself.
    apart = (s[..., None, :] - s[..., :, None]) * (s[..., None, :] + s[..., :, None])
    du = u @ (turning * reciprocal(apart))
    du += (dx @ adjoint(vh) - u @ inner) * reciprocal(s)[..., None, :]
    return u[..., :rank].astype(x.dtype), du[..., :rank].astype(x.dtype)


def reciprocal(x: Array) -> Array:
    """One over each entry, and zero for zero."""
    is_zero = x == 0
    return jnp.where(is_zero, jnp.zeros_like(x), 1 / jnp.where(is_zero, jnp.ones_like(x), x))
