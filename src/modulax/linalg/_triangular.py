"""Division by triangular matrices and by the Cholesky factors of Gram matrices, as short programs for a TPU.

Its compiler unrolls blocks: it takes 3 s for one decomposition of 256 rows, as long for the division, and more than 20
minutes for 1024 rows. The loops below have one body for all blocks, and one for all columns of a block. For 1024 rows,
that takes 4 s.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._support.varying import carried
from ._platforms import by_platform
from ._products import adjoint, product

_BLOCK = 128


def divide_by_factor(gram: Array, y: Array) -> Array:
    r"""Return $Y R^{-1}$ for $R^{\mathsf H} R = G$ with an upper triangular $R$; NaN if $G$ isn't positive definite.

    Args:
        gram: the Gram matrices $G$.
        y: the matrices $Y$, with as many columns.
    """
    x = _filled_up(gram)
    n, total = gram.shape[-1], x.shape[-1]
    # The factor is that of the columns of both.
    z = jnp.concatenate([x, _with_columns(y, total)], axis=-2)

    def of_block(z: Array, start: Array, size: int) -> tuple[Array, Array]:
        block = jax.lax.dynamic_slice_in_dim(z, start, size, axis=-1)
        inverse = _inverse(jax.lax.dynamic_slice_in_dim(block, start, size, axis=-2), is_gram=True)
        block = product(block, adjoint(inverse))
        return block, adjoint(block[..., :total, :])

    return _by_blocks(z, of_block)[..., total:, :n]


def divide_by_triangle(x: Array, r: Array) -> Array:
    """Return $X R^{-1}$ for upper triangular matrices $R$.

    Args:
        x: the matrices $X$, with as many columns.
        r: the matrices $R$.
    """
    n, r = r.shape[-1], _filled_up(r)

    def of_block(z: Array, start: Array, size: int) -> tuple[Array, Array]:
        block = jax.lax.dynamic_slice_in_dim(z, start, size, axis=-1)
        rows = jax.lax.dynamic_slice_in_dim(r, start, size, axis=-2)
        inverse = _inverse(adjoint(jax.lax.dynamic_slice_in_dim(rows, start, size, axis=-1)), is_gram=False)
        return product(block, adjoint(inverse)), rows

    return _by_blocks(_with_columns(x, r.shape[-1]), of_block)[..., :n]


def _by_blocks(z: Array, of_block: Callable[[Array, Array, int], tuple[Array, Array]]) -> Array:
    """Divide matrices by an upper triangular one, block by block of columns.

    Args:
        z: the matrices.
        of_block: a function of what remains of them, the start of a block and its size. It returns the columns of the
            quotient in that block, and the rows of the triangular matrix there, of which it reads those that follow.
    """
    total = z.shape[-1]
    size = min(_BLOCK, total)
    columns = jax.lax.broadcasted_iota(jnp.int32, (*[1] * (z.ndim - 1), total), z.ndim - 1)

    def next_block(k: Array, z: Array) -> Array:
        start = k * size
        block, rows = of_block(z, start, size)
        rows = jnp.where(columns >= start + size, rows, 0)
        return jax.lax.dynamic_update_slice_in_dim(z - product(block, rows), block, start, axis=-1)

    return jax.lax.fori_loop(0, total // size, next_block, carried(lambda z: next_block(jnp.zeros((), int), z), z))


def _filled_up(x: Array) -> Array:
    """Square matrices with the identity after them, so that blocks divide them."""
    *batch, n, _ = x.shape
    missing = -n % min(_BLOCK, n)
    if not missing:
        return x
    z = jnp.pad(x, [*[(0, 0)] * len(batch), (0, missing), (0, missing)])
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim + axis) for axis in (-2, -1))
    return jnp.where((rows == columns) & (rows >= n), jnp.ones_like(z), z)


def _with_columns(x: Array, total: int) -> Array:
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, total - x.shape[-1])])


def _inverse(x: Array, is_gram: bool) -> Array:
    """The inverse of lower triangular matrices, or of the Cholesky factors of Gram matrices.

    It comes from an elimination in these and an identity beside them.
    """
    n = x.shape[-1]
    both = jnp.concatenate([x, jnp.broadcast_to(jnp.eye(n, dtype=x.dtype), x.shape)], axis=-1)
    rows = jax.lax.broadcasted_iota(jnp.int32, (*[1] * (x.ndim - 2), n, 1), x.ndim - 2)

    def next_column(j: Array, both: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(both, j, 1, axis=-2)
        pivot = jax.lax.dynamic_slice_in_dim(row, j, 1, axis=-1)
        row = row / (jnp.sqrt(pivot.real).astype(row.dtype) if is_gram else pivot)
        column = adjoint(row[..., :n]) if is_gram else jax.lax.dynamic_slice_in_dim(both, j, 1, axis=-1)
        below = jnp.where(rows > j, column, 0)
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


def _solved(x: Array, r: Array) -> Array:
    return jax.lax.linalg.triangular_solve(r, x)


divided_by_triangle = by_platform("divided_by_triangle", _solved, {"tpu": divide_by_triangle})
