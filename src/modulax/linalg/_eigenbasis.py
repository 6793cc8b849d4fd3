"""Outer products of matrices and their eigenbases, which can be differentiated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from .._support.arithmetic import in_dtype, real_dtype
from .._support.checks import check_option
from .._support.varying import carried, cond
from ._orthonormal_factor import orthonormal_factor
from ._platforms import by_platform
from ._products import SIDES, Side, adjoint, product, rare_product
from ._singular import reciprocal


def largest_entry(x: Array, axis: int | tuple[int, ...] | None = (-2, -1)) -> Array:
    """Return the largest absolute value of each matrix, or one where it is zero: a constant to divide by.

    Args:
        x: matrices.
        axis: the axes over which it is the largest; None for all.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest))


_MOST = 1e15  # the square of it, times the number of entries of any matrix, is finite in float32


def scale(x: Array, factor: Array) -> Array:
    """Multiply an array by a number, or each matrix of it by one, at a fraction of the time that `*` takes to trace."""
    factor = in_dtype(factor, x.dtype)
    return jax.lax.mul(x, factor if factor.ndim == 0 else jax.lax.broadcast_in_dim(factor, x.shape, range(factor.ndim)))


def outer_product(x: Inexact[Array, "*batch m n"], side: str) -> Inexact[Array, "*batch k k"]:
    """Return $X X^*$ for the left side, and $X^* X$ for the right one; of a huge matrix, a multiple that is finite.

    Args:
        x: matrices.
        side: `"left"` or `"right"`.
    """
    check_option("outer_product", "side", side, SIDES)
    largest = jax.lax.reduce_max(jax.lax.abs(x), (x.ndim - 2, x.ndim - 1))
    one, most = np.ones((), largest.dtype), np.asarray(_MOST, largest.dtype)
    x = scale(x, jax.lax.min(jax.lax.div(most, jax.lax.max(largest, one)), one))
    return product(x, adjoint(x)) if side == "left" else product(adjoint(x), x)


@jax.custom_jvp
def eigenbasis(x: Array) -> Array:
    """Return the eigenvectors of Hermitian matrices as columns, from the largest eigenvalue on.

    The derivative is not defined where eigenvalues coincide; these components of it are zero.
    """
    # JAX would symmetrize by `jnp`, which takes longer to trace.
    half = jax.lax.mul(x, jax.lax.full_like(x, 0.5))
    vectors, _ = jax.lax.linalg.eigh(jax.lax.add(half, adjoint(half)), symmetrize_input=False)
    return jax.lax.rev(vectors, (x.ndim - 1,))


@eigenbasis.defjvp
def _eigenbasis_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    values, vectors = (jnp.flip(y, axis=-1) for y in jnp.linalg.eigh(x))
    apart = values[..., None, :] - values[..., :, None]
    turning = product(adjoint(vectors), product(dx, vectors)) * reciprocal(apart).astype(x.dtype)
    return vectors, product(vectors, turning)


@jax.custom_jvp
def orthonormalized(x: Array) -> Array:
    """Return the orthonormal factor of the QR decomposition of matrices with at least as many rows as columns.

    The derivative is not defined along columns that depend on those before them; these components of it are zero.
    """
    return orthonormal_factor(x)


@orthonormalized.defjvp
def _orthonormalized_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    q, r = jnp.linalg.qr(x)
    diagonal = jnp.diagonal(r, axis1=-2, axis2=-1)
    least = jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(diagonal), axis=-1, keepdims=True)
    is_free = jnp.abs(diagonal) > least
    # A dependent column gets a diagonal of one, so that the triangular system can be solved; its solution is dropped.
    r = jnp.where(is_free[..., None, :], r, identities(r))
    rates = adjoint(jax.scipy.linalg.solve_triangular(adjoint(r), adjoint(dx), lower=True))
    rates = jnp.where(is_free[..., None, :], rates, 0)
    within = product(adjoint(q), rates)
    below = jnp.tril(within, -1)
    dq = product(q, below - adjoint(below))
    return q, dq if x.shape[-2] == x.shape[-1] else dq + rates - product(q, within)


def power_step(x: Array, basis: Array) -> tuple[Array, Array]:
    """Return the products of matrices with their eigenvectors, and the order of the latter in them.

    They are sorted by the estimated eigenvalues, from the largest one on.

    Args:
        x: Hermitian matrices.
        basis: their eigenvectors, roughly, as columns.
    """
    turned = rare_product(x, basis)
    squares = jax.lax.mul(jax.lax.conj(basis) if jnp.iscomplexobj(basis) else basis, turned)
    estimates = jax.lax.reduce_sum(jax.lax.real(squares) if jnp.iscomplexobj(x) else squares, (x.ndim - 2,))
    _, order = jax.lax.top_k(estimates, x.shape[-1])
    return permute(turned, order, "right"), order


_MOST_ITERATIONS = 32
_STILL = 0.01  # the most that entries of a basis change in its last iteration


class _Iteration(NamedTuple):
    """A basis, how far its entries have moved, and the number of the iteration."""

    basis: Array
    moved: Array
    number: Array


def _iterated(x: Array, turned: Array, most: Array) -> Array:
    """Return an eigenbasis by orthogonal iterations, until the vectors stay.

    Args:
        x: Hermitian matrices.
        turned: their products with the first basis.
        most: the largest number of iterations, for all matrices or each.
    """
    most = jnp.broadcast_to(jnp.reshape(most, (*most.shape, *[1] * (x.ndim - most.ndim))), (*x.shape[:-2], 1, 1))

    def is_open(now: _Iteration) -> Array:
        # Of each matrix, so that nothing depends on those beside it.
        return (now.moved > _STILL) & (now.number < most)

    def next_round(now: _Iteration) -> _Iteration:
        y = cond(now.number > 0, lambda: power_step(x, now.basis)[0], lambda: turned)
        new = jnp.where(is_open(now), orthonormalized(y), now.basis)
        moved = jnp.max(jnp.abs(jnp.abs(new) - jnp.abs(now.basis)), axis=(-2, -1), keepdims=True)
        return _Iteration(new, moved, now.number + 1)

    far, none = jnp.full(most.shape, jnp.inf, real_dtype(x.dtype)), jnp.zeros((), jnp.int32)
    start = _Iteration(jnp.zeros_like(x), far, none)
    return jax.lax.while_loop(lambda now: jnp.any(is_open(now)), next_round, carried(next_round, start)).basis


def _first_or_next(x: Array, turned: Array, is_first: Array) -> Array:
    if is_first.ndim:
        return jax.vmap(_first_or_next)(x, turned, is_first)
    return cond(is_first, lambda: eigenbasis(x), lambda: orthonormalized(turned))


def _by_iterations(x: Array, turned: Array, is_first: Array) -> Array:
    return _iterated(x, turned, jnp.where(is_first, _MOST_ITERATIONS, 1))


_next_eigenbasis = by_platform("next_eigenbasis", _first_or_next, {"tpu": _by_iterations})


def next_eigenbasis(x: Array, basis: Array, is_first: Array) -> tuple[Array, Array]:
    """Return a better eigenbasis by one power step and a QR decomposition, and the order of the old vectors in it.

    The first one is that of `eigenbasis`; on a TPU, whose compiler takes minutes for it, roughly, by iterations.

    Args:
        x: Hermitian matrices.
        basis: their eigenvectors, roughly, as columns; at first, zeros.
        is_first: whether it is the first one.
    """
    turned, order = power_step(x, basis)
    return _next_eigenbasis(x, turned, is_first), order


def _decomposed(x: Array, basis: Array) -> Array:
    del basis
    return eigenbasis(x)


def _iterated_from(x: Array, basis: Array) -> Array:
    turned, _ = power_step(x, basis)
    return _iterated(x, turned, jnp.asarray(_MOST_ITERATIONS))


# Returns `eigenbasis` of matrices; on a TPU, roughly, by iterations from a basis until now.
renewed_eigenbasis = by_platform("renewed_eigenbasis", _decomposed, {"tpu": _iterated_from})


def qr_iterations(x: Array, basis: Array, number: int) -> Array:
    """Return a better eigenbasis by iterations of the QR algorithm, with the smallest estimated eigenvalue first.

    Args:
        x: Hermitian matrices.
        basis: their eigenvectors, roughly, as columns.
        number: how many iterations.
    """
    estimate = rare_product(adjoint(basis), rare_product(x, basis))
    for _ in range(number):
        turn = orthonormalized(estimate)
        estimate = rare_product(adjoint(turn), rare_product(estimate, turn))
        basis = rare_product(basis, turn)
    order = jnp.argsort(jnp.real(jnp.diagonal(estimate, axis1=-2, axis2=-1)), axis=-1)
    return permute(basis, order, "right")


def permute(x: Array, order: Array, side: Side) -> Array:
    """Return a matrix with its rows or columns in another order."""
    *batch, rows, columns = range(x.ndim)
    axis, kept = (rows, columns) if side == "left" else (columns, rows)
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(kept,),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=tuple(batch),
        start_indices_batching_dims=tuple(batch),
    )
    sizes = [*[1] * len(batch), x.shape[rows], x.shape[columns]]
    sizes[axis] = 1
    mode = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return jax.lax.gather(x, jax.lax.expand_dims(order, (order.ndim,)), numbers, tuple(sizes), mode=mode)


def identities(x: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
