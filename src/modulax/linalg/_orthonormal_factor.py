"""The orthonormal factor of the QR decomposition, which a GPU finds faster by Cholesky decompositions.

Householder's method goes from column to column, and a GPU waits for each. Times on an H200, in milliseconds:

| matrices | Householder | Cholesky |
|---|---|---|
| 12 of 768 × 768 | 686 | 2.6 |
| 12 of 3072 × 3072 | 221 | 43 |
| 12 of 2304 × 192 | 14 | 1.7 |

The compiler for TPU takes about as long for one as for the other: 43 and 34 s for 1024 columns. There, and on a CPU,
it is Householder's method.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array, Bool, Inexact

from .._support.arithmetic import in_dtype, real_dtype
from .._support.varying import carried, cond
from ._products import adjoint, product

_MOST_ROUNDS = 8
_GPUS = ("cuda", "rocm")
# A primitive, so that the form for a GPU is traced only for a GPU: `jax.lax.platform_dependent` traces all forms, which
# takes 4 % of the instructions to trace and lower SOAP.
_factor = Primitive("modulax_orthonormal_factor")


def orthonormal_factor(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch m n"]:
    r"""Return $Q$ of the QR decomposition of matrices with at least as many rows as columns.

    On a GPU, $Q$ comes from rounds of

    $$
    Y_{k+1} = Y_k R_k^{-1}, \qquad R_k^{\mathsf H} R_k = Y_k^{\mathsf H} Y_k + s I
    $$

    where the columns of $Y_k$ are normalized first, and the shift $s$ keeps the Gram matrix positive definite. All
    $Y_k$ have the same $Q$. A round squares their distance from orthonormal columns once that is small. If it isn't
    after eight rounds, Householder's method computes $Q$.

    References:
        Fukaya et al., [Shifted Cholesky QR for computing the QR factorization of ill-conditioned
        matrices](https://arxiv.org/abs/1809.11085), 2020
    """
    return _factor.bind(x)


def _by_householder(x: Array) -> Array:
    # Without $R$, whose zeros take most of the time to lower a QR decomposition.
    reflectors, factors = jnp.linalg.qr(x, mode="raw")
    return jax.lax.linalg.householder_product(jnp.matrix_transpose(reflectors), factors)


def _on_gpu(x: Array) -> Array:
    q, is_orthonormal = by_cholesky(x)
    return cond(is_orthonormal, lambda: q, lambda: _by_householder(x))


def _batched(operands, axes):
    # One decision for all matrices: under `vmap`, a `cond` computes both branches.
    (x,), (axis,) = operands, axes
    return _factor.bind(jnp.moveaxis(x, axis, 0)), 0


class _Round(NamedTuple):
    """Matrices, how far the columns of the last ones were from orthonormal, and the number of the round."""

    y: Array
    distance: Array
    number: Array


def by_cholesky(x: Inexact[Array, "*batch m n"]) -> tuple[Inexact[Array, "*batch m n"], Bool[Array, ""]]:
    """Return $Q$ with a positive diagonal of $R$, and whether all its columns are orthonormal, up to rounding."""
    # `lax`, because calls of `jnp` take several times longer to trace.
    *batch, _, n = x.shape
    *kept, rows, columns = range(x.ndim)
    real = real_dtype(x.dtype)
    unit = float(jnp.finfo(real).eps)
    shift = 10 * unit * n**0.5
    indices = [jax.lax.broadcasted_iota(jnp.int32, (*batch, n, n), axis) for axis in (rows, columns)]
    is_diagonal = jax.lax.eq(*indices)

    def of_columns(reduce: Callable[[Array, Sequence[int]], Array], y: Array) -> Array:
        return jax.lax.broadcast_in_dim(reduce(y, (rows,)), y.shape, (*kept, columns))

    def next_round(now: _Round) -> _Round:
        y = now.y
        y = jax.lax.div(y, in_dtype(of_columns(jax.lax.reduce_max, jax.lax.abs(y)), y.dtype))
        squares = jax.lax.square(y) if y.dtype == real else jax.lax.square(jax.lax.abs(y))
        y = jax.lax.div(y, in_dtype(jax.lax.sqrt(of_columns(jax.lax.reduce_sum, squares)), y.dtype))
        gram = product(adjoint(y), y)
        zero, diagonal = jax.lax.full_like(gram, 0), jax.lax.full_like(gram, 1 + shift)
        away = jax.lax.reduce_max(jax.lax.abs(jax.lax.select(is_diagonal, zero, gram)), range(y.ndim))
        factor = jax.lax.linalg.cholesky(jax.lax.select(is_diagonal, diagonal, gram), symmetrize_input=False)
        y = jax.lax.linalg.triangular_solve(factor, y, lower=True, transpose_a=True, conjugate_a=True)
        return _Round(y, away, jax.lax.add(now.number, np.int32(1)))

    def is_open(now: _Round) -> Array:
        # NaN ends it: a Gram matrix that isn't positive definite has no factor, and no round mends that.
        is_far = jax.lax.gt(now.distance, np.asarray(unit**0.5, real))
        return jax.lax.bitwise_and(is_far, jax.lax.lt(now.number, np.int32(_MOST_ROUNDS)))

    # Any column will do where the matrix has none.
    _, bits = jax.lax.rng_bit_generator(jax.lax.full((4,), 0, np.uint32), x.shape, np.uint32)
    signed = jax.lax.bitcast_convert_type(bits, np.int32)
    is_there = jax.lax.ne(of_columns(jax.lax.reduce_max, jax.lax.abs(x)), np.asarray(0, real))
    y = jax.lax.select(is_there, x, signed.astype(x.dtype))
    start = _Round(y, jax.lax.full((), np.inf, real), jax.lax.full((), 0, np.int32))
    found = jax.lax.while_loop(is_open, next_round, carried(next_round, start))
    # Of orthonormal columns, the Gram matrix with the shift is a multiple of the identity.
    q = jax.lax.mul(found.y, jax.lax.full_like(found.y, (1 + shift) ** 0.5))
    return q, jax.lax.le(found.distance, np.asarray(unit**0.5, real))


_factor.def_abstract_eval(lambda x: x)


_factor.def_impl(lambda x: jax.lax.platform_dependent(x, default=_by_householder, **dict.fromkeys(_GPUS, _on_gpu)))


batching.primitive_batchers[_factor] = _batched


mlir.register_lowering(_factor, mlir.lower_fun(_by_householder, multiple_results=False))


for _platform in _GPUS:
    mlir.register_lowering(_factor, mlir.lower_fun(_on_gpu, multiple_results=False), platform=_platform)
