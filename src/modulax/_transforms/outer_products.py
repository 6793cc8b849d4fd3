"""Averages of the outer products of matrices, and their eigenbases: what SOAP and the optimizers like it share.

All functions take matrices on the last two axes of an array. A side of a matrix is its rows, `"left"`, or its columns,
`"right"`. Many small decompositions are computed as one batch per shape (`in_batches`): QR of twelve matrices with
256 rows takes a third of the time that it takes one by one, on a CPU.
"""

import collections
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, PyTree

from .._support.arithmetic import at_least_float32, beside, common_dtype, dtype_for, in_dtype
from ..linalg._orthonormal_factor import orthonormal_factor
from ..linalg._products import adjoint, product
from ..linalg._singular import reciprocal
from ..tree._align import align
from .spread import number_of_devices

Rebuild = Callable[[list[Any]], PyTree]
Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")


class LeafInBases(NamedTuple):
    """The state of one leaf, whose second moment is kept in the eigenbases of its outer products."""

    mu: Array
    nu: Array
    left: Array | None
    right: Array | None
    left_basis: Array | None
    right_basis: Array | None


class MomentsInBases(NamedTuple):
    """Moments of one leaf, and the eigenbases."""

    mu: Array
    nu: Array
    left_basis: Array | None
    right_basis: Array | None


def largest_entry(x: Array, axis: int | tuple[int, ...] | None = (-2, -1)) -> Array:
    """Return the largest absolute value of each matrix, or one where it is zero: a constant to divide by.

    Args:
        x: matrices.
        axis: the axes over which it is the largest; None for all.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0.0))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest))


_MOST = 1e15  # the square of it, times the number of entries of any matrix, is finite in float32


def times(x: Array, factor: Array) -> Array:
    """Multiply an array by a number, or each matrix of it by one, at a fraction of the time that `*` takes to trace."""
    factor = in_dtype(factor, x.dtype)
    return jax.lax.mul(x, factor if factor.ndim == 0 else jax.lax.broadcast_in_dim(factor, x.shape, range(factor.ndim)))


def outer_product(x: Array, side: Side) -> Array:
    """Return $X X^*$ for the left side, and $X^* X$ for the right one; of a huge matrix, a multiple that is finite."""
    largest = jax.lax.reduce_max(jax.lax.abs(x), (x.ndim - 2, x.ndim - 1))
    one, most = np.ones((), largest.dtype), np.asarray(_MOST, largest.dtype)
    x = times(x, jax.lax.min(jax.lax.div(most, jax.lax.max(largest, one)), one))
    return product(x, adjoint(x)) if side == "left" else product(adjoint(x), x)


def dtype_of_products(x: Array, dtype: DTypeLike | None) -> DTypeLike:
    """Return the dtype of the outer products of an array and of what is computed from them.

    Args:
        x: the array.
        dtype: the one that is asked for; None for at least float32.
    """
    return at_least_float32(x.dtype) if dtype is None else dtype_for(x, dtype) or x.dtype


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
    return jax.lax.add(times(in_dtype(total, dtype), decay), times(in_dtype(x, dtype), rest))


def averaged(decay: Array, total: Array, x: Array) -> Array:
    """Return the average or the sum with one more outer product; it keeps its dtype."""
    return in_dtype(accumulated(decay, total, x), total.dtype)


def applied(x: Array, matrix: Array | None, side: Side) -> Array:
    """Return $M X$ for the left side and $X M$ for the right one; without a matrix, return $X$."""
    if matrix is None:
        return x
    return product(matrix, x) if side == "left" else product(x, matrix)


def rotated(x: Array, left: Array | None, right: Array | None) -> Array:
    """Return $Q_L^* X Q_R$: a matrix in the bases of both sides; None for a side without one."""
    return applied(applied(x, None if left is None else adjoint(left), "left"), right, "right")


def rotated_back(x: Array, left: Array | None, right: Array | None) -> Array:
    """Return $Q_L X Q_R^*$, the inverse of `rotated`."""
    return applied(applied(x, left, "left"), None if right is None else adjoint(right), "right")


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
    return orthonormalized(in_order(turned, order, "right")), order


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
    return in_order(basis, order, "right")


def in_order(x: Array, order: Array, side: Side) -> Array:
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


def sides_in(leaves: Sequence[Any]) -> list[tuple[int, Side]]:
    """Return the places of the outer products in the states of leaves: the number of a leaf, and its side."""
    return [(i, side) for i, leaf in enumerate(leaves) for side in SIDES if getattr(leaf, side) is not None]


def by_leaf(kind: Any, state: Any, like: PyTree, owner: str) -> tuple[list[Any], list[Rebuild]]:
    """Return the fields of a state for each leaf, and the functions that put them back into trees.

    Args:
        kind: the class of what a leaf has, a NamedTuple with the names of these fields.
        state: the state.
        like: the updates, whose leaves give the order.
        owner: the call to name in error messages.
    """
    columns = [align(getattr(state, name), like, owner) for name in kind._fields]
    leaves = [kind(*row) for row in zip(*(values for values, _ in columns), strict=True)]
    return leaves, [rebuild for _, rebuild in columns]


def by_field(leaves: Sequence[tuple[Any, ...]], rebuild: Sequence[Rebuild]) -> list[PyTree]:
    """Return the trees of all fields, from those of each leaf: the inverse of `by_leaf`."""
    columns = zip(*leaves, strict=True) if leaves else [()] * len(rebuild)
    return [make(list(values)) for make, values in zip(rebuild, columns, strict=True)]


def in_batches(
    function: Callable[..., tuple[Array, ...]],
    *lists: Sequence[Array],
    after: Sequence[Array] = (),
    is_flat: bool = False,
) -> list[tuple[Array, ...]]:
    """Apply a function to corresponding arrays of lists, with all matrices of one shape and dtype joined in one batch.

    Args:
        function: of one array of each list, with one batch axis, which returns arrays with that axis first. What it
            decomposes or divides by triangular matrices depends on its first argument, and its first result on that.
        lists: arrays of matrices on the last two axes, with the same axes before these at one place.
        after: results of other batches in the same program, for which the first one waits.
        is_flat: whether results have one batch axis each, which costs less to trace than the axes of the arrays.
    """
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, x in enumerate(lists[0]):
        kinds[x.shape[-2:], x.dtype].append(i)
    out: list[tuple[Array, ...]] = [()] * len(lists[0])
    for places in kinds.values():
        batches = [lists[0][i].shape[:-2] for i in places]
        first, *others = (_joined([xs[i] for i in places]) for xs in lists)
        results = function(_after(after, first), *others)
        after = results[:1]
        for i, *parts in zip(places, *(_separate(y, batches, is_flat) for y in results), strict=True):
            out[i] = tuple(parts)
    return out


def _joined(xs: Sequence[Array]) -> Array:
    """Arrays of matrices as one batch."""
    # `lax`, because hundreds of calls of `jnp` take longer to trace than what is computed. On one device by rows, where
    # single matrices have their shape already; a mesh may divide the rows.
    axes = 1 if number_of_devices(xs[0]) == 1 else 2
    shapes = [(math.prod(x.shape[:-axes]), *x.shape[-axes:]) for x in xs]
    flat = [x if x.shape == shape else jax.lax.reshape(x, shape) for x, shape in zip(xs, shapes, strict=True)]
    count = sum(math.prod(x.shape[:-2]) for x in xs)
    return jax.lax.reshape(jax.lax.concatenate(flat, 0), (count, *xs[0].shape[-2:]))


def _separate(y: Array, batches: Sequence[tuple[int, ...]], is_flat: bool) -> Sequence[Array]:
    """The entries of a batch for each array of matrices, with these batch axes."""
    # Not by rows: a TPU would store the parts of rows, and not of a batch.
    parts = jax.lax.split(y, [math.prod(batch) for batch in batches])
    if is_flat:
        return parts
    return [jax.lax.reshape(part, (*batch, *y.shape[1:])) for part, batch in zip(parts, batches, strict=True)]


def _after(before: Sequence[Array], x: Array) -> Array:
    """The same array, which a program has only once it has others.

    XLA for CPU calls LAPACK for the matrices of a batch in the threads that also run the batches, and waits for them:
    several batches at once may wait for each other forever. It drops optimization barriers.
    """
    for other in before:
        x = beside(x, jax.lax.reduce_sum(jax.lax.abs(other), range(other.ndim)))
    return x


def widely(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Return a function of matrices in one dtype, computed in at least float32; its results have that dtype again."""

    def computed(*xs: Array) -> tuple[Array, ...]:
        dtype, wide = xs[0].dtype, at_least_float32(xs[0].dtype)
        return tuple(in_dtype(y, dtype) if y.dtype == wide else y for y in function(*(in_dtype(x, wide) for x in xs)))

    return computed


def inverse_root(x: Array, exponent: Array, eps: Array, sides: ArrayLike, kept: DTypeLike | None = None) -> Array:
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
