"""Named matrix products."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from .._support.varying import carried
from ._platforms import by_platform

Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")


def adjoint(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n m"]:
    """The conjugate transpose of each matrix."""
    # `lax`, because `jnp` takes several times longer to trace.
    *batch, rows, columns = range(x.ndim)
    x = jax.lax.transpose(x, (*batch, columns, rows))
    return jax.lax.conj(x) if jnp.iscomplexobj(x) else x


def product(a: Inexact[Array, "*batch m k"], b: Inexact[Array, "*batch k n"]) -> Inexact[Array, "*batch m n"]:
    """The product in full precision: by default, a TPU rounds float32 to bfloat16, and a GPU to TensorFloat-32."""
    precision = jax.lax.Precision.HIGHEST
    if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2]:
        return jnp.matmul(a, b, precision=precision)
    *batch, rows, columns = range(a.ndim)
    return jax.lax.dot_general(a, b, (((columns,), (rows,)), (batch, batch)), precision=precision)


_BLOCKS = 8  # of columns
_TILE = 128


def product_of_blocks(a: Array, b: Array) -> Array:
    """The product, by blocks of its columns, in a loop.

    The compiler for TPU takes 1 to 13 s for a product of 1024 rows in full precision, as what is around it may be, and
    1 s for the loop.

    Args:
        a: matrices.
        b: matrices, which fill what a device has.
    """
    columns = b.shape[-1]
    size = -(-columns // (_BLOCKS * _TILE)) * _TILE
    if columns <= 2 * size:
        return product(a, b)

    # The last block begins earlier if it would end after the matrix.
    def next_block(k: Array, out: Array) -> Array:
        block = product(a, jax.lax.dynamic_slice_in_dim(b, k * size, size, axis=-1))
        return jax.lax.dynamic_update_slice_in_dim(out, block, k * size, axis=-1)

    def body(out: Array) -> Array:
        return next_block(jnp.zeros((), int), out)

    start = jnp.zeros((*a.shape[:-1], columns), a.dtype)
    return jax.lax.fori_loop(0, -(-columns // size), next_block, carried(body, start))


_rare_product = by_platform(
    "rare_product",
    product,
    {"tpu": product_of_blocks},
    lambda a, b: a.update(shape=(*a.shape[:-1], b.shape[-1])),
)


def rare_product(a: Array, b: Array) -> Array:
    """The product, for what is computed every few steps on one device: on a TPU, by `product_of_blocks`."""
    return product(a, b) if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2] else _rare_product(a, b)


Product = Callable[[Array, Array], Array]


def applied(x: Array, matrix: Array | None, side: Side, product: Product = product) -> Array:
    """Return $M X$ for the left side and $X M$ for the right one; without a matrix, return $X$."""
    if matrix is None:
        return x
    return product(matrix, x) if side == "left" else product(x, matrix)


def rotated(x: Array, left: Array | None, right: Array | None, product: Product = product) -> Array:
    """Return $Q_L^* X Q_R$: a matrix in the bases of both sides; None for a side without one."""
    return applied(applied(x, None if left is None else adjoint(left), "left", product), right, "right", product)


def rotated_back(x: Array, left: Array | None, right: Array | None, product: Product = product) -> Array:
    """Return $Q_L X Q_R^*$, the inverse of `rotated`."""
    return applied(applied(x, left, "left", product), None if right is None else adjoint(right), "right", product)
