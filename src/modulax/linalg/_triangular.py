"""Division by the Cholesky factor of a Gram matrix, as a short program for a TPU.

Its compiler unrolls blocks: it takes 3 s for one decomposition of 256 rows, as long for the division, and more than 20
minutes for 1024 rows. The loops below have one body for all blocks, and one for all columns of a block. For 1024 rows,
that takes 4 s.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._support.varying import carried
from ._products import adjoint, product

_BLOCK = 128


def divide_by_factor(gram: Array, y: Array) -> Array:
    r"""Return $Y R^{-1}$ for $R^{\mathsf H} R = G$ with an upper triangular $R$; NaN if $G$ isn't positive definite.

    Args:
        gram: the Gram matrices $G$.
        y: the matrices $Y$, with as many columns.
    """
    *batch, n, _ = gram.shape
    size = min(_BLOCK, n)
    missing = -n % size
    total = n + missing
    # The factor is that of the columns of both, filled up by the identity.
    z = jnp.pad(gram, [*[(0, 0)] * len(batch), (0, missing), (0, missing)])
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim + axis) for axis in (-2, -1))
    z = jnp.where((rows == columns) & (rows >= n), jnp.ones_like(z), z)
    z = jnp.concatenate([z, jnp.pad(y, [*[(0, 0)] * (y.ndim - 1), (0, missing)])], axis=-2)
    columns = columns[..., :1, :]

    def next_block(k: Array, z: Array) -> Array:
        start = k * size
        block = jax.lax.dynamic_slice_in_dim(z, start, size, axis=-1)
        inverse = _inverse_factor(jax.lax.dynamic_slice_in_dim(block, start, size, axis=-2))
        block = product(block, adjoint(inverse))
        rows = jnp.where(columns >= start + size, adjoint(block[..., :total, :]), 0)
        return jax.lax.dynamic_update_slice_in_dim(z - product(block, rows), block, start, axis=-1)

    return jax.lax.fori_loop(0, total // size, next_block, z)[..., total:, :n]


def _inverse_factor(x: Array) -> Array:
    """The inverse of the lower Cholesky factor of matrices, by elimination in these and an identity beside them."""
    n = x.shape[-1]
    both = jnp.concatenate([x, jnp.broadcast_to(jnp.eye(n, dtype=x.dtype), x.shape)], axis=-1)
    rows = jax.lax.broadcasted_iota(jnp.int32, (*[1] * (x.ndim - 2), n, 1), x.ndim - 2)

    def next_column(j: Array, both: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(both, j, 1, axis=-2)
        pivot = jax.lax.dynamic_slice_in_dim(row, j, 1, axis=-1)
        row = row / jnp.sqrt(pivot.real).astype(row.dtype)
        below = jnp.where(rows > j, adjoint(row[..., :n]), 0)
        return jax.lax.dynamic_update_slice_in_dim(both - below * row, row, j, axis=-2)

    return jax.lax.fori_loop(0, n, next_column, both)[..., n:]


def by_columns(x: Array, noise: Array) -> Array:
    """Return orthonormal columns with the span of those before, column by column: Gram and Schmidt's method, repeated.

    Args:
        x: matrices with at least as many rows as columns.
        noise: directions for the columns that depend on those before.
    """
    least = 8 * float(jnp.finfo(x.dtype).eps)

    def next_column(j: Array, q: Array) -> Array:
        def rest(v: Array) -> Array:
            return v - product(q, product(adjoint(q), v))

        v, other = (_unit(jax.lax.dynamic_slice_in_dim(y, j, 1, axis=-1)) for y in (x, noise))
        v = rest(v)
        v = jnp.where(_length(v) <= least, other, v)
        # Once more for what rounding left, and again for a direction that was mostly rounding.
        v = _unit(rest(_unit(rest(_unit(v)))))
        return jax.lax.dynamic_update_slice_in_dim(q, v, j, axis=-1)

    return jax.lax.fori_loop(0, x.shape[-1], next_column, carried(lambda q: next_column(jnp.zeros((), int), q), x * 0))


def _length(v: Array) -> Array:
    return jnp.linalg.norm(v, axis=-2, keepdims=True)


def _unit(v: Array) -> Array:
    for size in (lambda v: jnp.max(jnp.abs(v), axis=-2, keepdims=True), _length):  # no square overflows
        length = size(v)
        v = v / jnp.where(length == 0, 1, length).astype(v.dtype)
    return v
