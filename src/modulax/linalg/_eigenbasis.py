"""Outer products of matrices, their eigenbases and their inverse roots, which can be differentiated."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Inexact

from .._support.arithmetic import in_dtype, scalar_like
from .._support.checks import check_option
from .._support.varying import carried
from ._orthonormal_factor import orthonormal_factor
from ._platforms import by_platform
from ._products import adjoint, product
from ._singular import reciprocal

Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")


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


def next_eigenbasis(x: Array, basis: Array) -> tuple[Array, Array]:
    """Return a better eigenbasis by one power step and a QR decomposition, and the order of the old vectors in it.

    The old vectors are sorted by their estimated eigenvalues first, from the largest one on.

    Args:
        x: Hermitian matrices.
        basis: their eigenvectors, roughly, as columns.
    """
    turned = product(x, basis)
    squares = jax.lax.mul(jax.lax.conj(basis) if jnp.iscomplexobj(basis) else basis, turned)
    estimates = jax.lax.reduce_sum(jax.lax.real(squares) if jnp.iscomplexobj(x) else squares, (x.ndim - 2,))
    _, order = jax.lax.top_k(estimates, x.shape[-1])
    return orthonormalized(permute(turned, order, "right")), order


_MOST_ITERATIONS = 32
_STILL = 0.01  # the most that entries of a basis change in its last iteration


class _Iteration(NamedTuple):
    """A basis, how far its entries have moved, and the number of the iteration."""

    basis: Array
    moved: Array
    number: Array


def _by_iterations(x: Array) -> Array:
    def next_round(now: _Iteration) -> _Iteration:
        new, _ = next_eigenbasis(x, now.basis)
        return _Iteration(new, jnp.max(jnp.abs(jnp.abs(new) - jnp.abs(now.basis))), now.number + 1)

    def is_open(now: _Iteration) -> Array:
        return (now.moved > _STILL) & (now.number < _MOST_ITERATIONS)

    basis = identities(x)
    start = _Iteration(basis, jnp.full((), jnp.inf, jnp.real(basis).dtype), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(is_open, next_round, carried(next_round, start)).basis


_first_eigenbasis = by_platform("first_eigenbasis", eigenbasis, {"tpu": _by_iterations})


@jax.custom_jvp
def first_eigenbasis(x: Array) -> Array:
    """Return `eigenbasis`; on a TPU, whose compiler takes minutes for it, roughly, by orthogonal iterations."""
    return _first_eigenbasis(x)


first_eigenbasis.defjvp(_eigenbasis_jvp)


def qr_iterations(x: Array, basis: Array, number: int) -> Array:
    """Return a better eigenbasis by iterations of the QR algorithm, with the smallest estimated eigenvalue first.

    Args:
        x: Hermitian matrices.
        basis: their eigenvectors, roughly, as columns.
        number: how many iterations.
    """
    estimate = product(adjoint(basis), product(x, basis))
    for _ in range(number):
        turn = orthonormalized(estimate)
        estimate = product(adjoint(turn), product(estimate, turn))
        basis = product(basis, turn)
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


def inverse_root(
    x: Inexact[Array, "*batch n n"],
    exponent: ArrayLike,
    eps: ArrayLike,
    sides: ArrayLike = 1,
    kept: DTypeLike | None = None,
) -> Inexact[Array, "*batch n n"]:
    r"""Return $(X + \varepsilon I)^{-p}$ of Hermitian matrices, by their eigenvalues, which are at least $\varepsilon$.

    They are also at least a fraction of the largest one. A momentum within the range of $X$ has rounding errors outside
    of it, which the root would multiply by up to $\varepsilon^{-p}$. With the fraction, the roots of all sides together
    multiply them by at most $1 / \sqrt{8 u}$ times the factor of the largest eigenvalue, with the machine epsilon $u$.

    Args:
        x: Hermitian positive semidefinite matrices.
        exponent: the exponent $p$: a scalar, or a column with an entry for each matrix.
        eps: $\varepsilon$.
        sides: the number of sides on which a matrix is multiplied by such a root, likewise.
        kept: the dtype to which $X$ was rounded, if it was; the momentum has at least the errors of float32 then.
    """
    exponent, eps = scalar_like(exponent, x), scalar_like(eps, x)
    total = jax.lax.stop_gradient(exponent) * sides
    # Errors of eigenvalues were up to 3 u times the largest one, for 4 to 1024 rows.
    errors = [jnp.finfo(dtype).eps for dtype in ([x.dtype] if kept is None else [kept, jnp.float32])]
    fraction = (8 * float(max(errors))) ** (1 / jnp.maximum(2 * total, 1))
    return _inverse_power(x + eps.astype(x.dtype) * identities(x), exponent, eps, fraction)


def identities(x: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)


@jax.custom_jvp
def _inverse_power(x: Array, exponent: Array, least: Array, fraction: Array) -> Array:
    values, vectors = _eigenvalues(x)
    powers = _raised(values, least, fraction) ** -exponent
    return product(vectors * powers[..., None, :].astype(x.dtype), adjoint(vectors))


def _eigenvalues(x: Array) -> tuple[Array, Array]:
    """Eigenvalues, the largest one last, and eigenvectors."""
    # Within the decomposition, entries are squared.
    scale = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True, initial=jnp.finfo(x.dtype).tiny)
    values, vectors = jnp.linalg.eigh(x / scale.astype(x.dtype))
    return values * scale[..., 0], vectors


def _raised(values: Array, least: Array, fraction: Array) -> Array:
    """Eigenvalues, at least a number, and at least a fraction of the largest one."""
    return jnp.maximum(values, jnp.maximum(least, fraction * values[..., -1:]))


@_inverse_power.defjvp
def _inverse_power_jvp(primals, tangents):
    """By the divided differences of the function of an eigenvalue, which are finite for equal eigenvalues too."""
    (x, exponent, least, fraction), (dx, d_exponent, *_) = primals, tangents
    values, vectors = _eigenvalues(x)
    raised = _raised(values, least, fraction)
    powers = raised**-exponent
    slope = -exponent * powers / raised
    apart = values[..., None, :] - values[..., :, None]
    differences = (powers[..., None, :] - powers[..., :, None]) * reciprocal(apart)
    own = jnp.where(raised == values, slope, 0)
    slopes = jnp.where(apart == 0, own[..., None, :], differences)
    turned = product(adjoint(vectors), product(dx, vectors))
    inside = turned * slopes.astype(x.dtype)
    # Eigenvalues that were raised to a fraction of the largest one change with it.
    follows = (raised > values) & (raised > least)
    d_largest = jnp.real(jnp.diagonal(turned, axis1=-2, axis2=-1)[..., -1:])
    diagonal = jnp.where(follows, slope * fraction * d_largest, 0) - jnp.log(raised) * powers * d_exponent
    inside += diagonal[..., None, :].astype(x.dtype) * identities(x)
    root = product(vectors * powers[..., None, :].astype(x.dtype), adjoint(vectors))
    return root, product(vectors, product(inside, adjoint(vectors)))
