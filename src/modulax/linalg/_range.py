"""The span of the leading singular vectors, approximately, by matrix products alone.

A singular value decomposition is a long program on an accelerator: for one 512 × 512 matrix, the TPU compiler takes a
minute and writes 90 MB. Subspace iteration needs two products with the matrix per round, and an orthonormalization of a
few columns, for which Newton-Schulz iteration is a short loop of products too.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from .._support.arithmetic import abs_sq, real_dtype, safe_sqrt
from .._support.varying import carried
from ._newton_schulz import PRESETS
from ._products import adjoint

# The first steps multiply small singular values by 3.4 each, so that all end above 0.5, even those of a square sketch
# (see `_SHARE`). The last ones converge to one.
_STEPS = np.array([*PRESETS["standard"] * 18, *[(1.5, -0.5, 0.0)] * 6])
# Of the sketch in what is orthonormalized: the columns that a matrix of low rank lacks. Of size `_SHARE` squared is the
# energy that is lost of directions with small singular values.
_SHARE = 1e-4
# Keeps the product of columns with the largest floats from overflow.
_MARGIN = 2.0**-10
# By default, a TPU rounds the factors of a product to bfloat16.
_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def leading_ranges(
    matrices: Sequence[Inexact[Array, "..."]], rank: int, rounds: int = 4
) -> list[Inexact[Array, "..."]]:
    r"""Find orthonormal columns that nearly span the leading left singular vectors, by subspace iteration.

    $$
    Q_{k+1} = \operatorname{orth}\left( A (A^{\mathsf H} Q_k) \right), \qquad Q_0 = \Omega
    $$

    The entries of the sketch $\Omega$ are normally distributed, and the same in every call. $\operatorname{orth}$ is
    the polar factor. The matrices may be of any scale and rank; a zero matrix has the columns of $\Omega$.

    Args:
        matrices: matrices or batches of them with equally many rows, in one dtype, at least float32. Their columns are
            orthonormalized by one program.
        rank: number of columns, at most the smaller side of any matrix.
        rounds: number of rounds.
    """
    m, dtype = matrices[0].shape[-2], matrices[0].dtype
    key = jax.random.key(0, impl="threefry2x32")
    sketch = _unit(jax.random.normal(key, (m, rank), real_dtype(dtype)).astype(dtype))
    ends = np.cumsum([x.size // (m * x.shape[-1]) for x in matrices])
    # The scale is divided out of the few columns, not of the matrices, which would have to be stored.
    scales = [_largest(x) for x in matrices]

    def next_round(_: Array, q: Array) -> Array:
        bases = [y.reshape(*x.shape[:-1], rank) for x, y in zip(matrices, jnp.split(q, ends[:-1]), strict=True)]
        new = [_product(*row).reshape(-1, m, rank) for row in zip(matrices, scales, bases, strict=True)]
        # One at a time: a loop over matrices is a smaller program than products of batches, and compiles faster.
        return jax.lax.map(lambda y: _polar_factor(_unit(_unit(y) + _SHARE * sketch)), jnp.concatenate(new))

    start = jnp.broadcast_to(sketch, (ends[-1], m, rank))
    q = jax.lax.fori_loop(0, rounds, next_round, carried(functools.partial(next_round, jnp.zeros((), int)), start))
    return [y.reshape(*x.shape[:-1], rank) for x, y in zip(matrices, jnp.split(q, ends[:-1]), strict=True)]


def _largest(x: Array) -> Array:
    """The largest absolute value of each matrix, and one for a zero matrix."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest)).astype(x.dtype)


def _product(x: Array, scale: Array, q: Array) -> Array:
    """The columns times the matrix and its adjoint."""
    return _dot(x, _dot(adjoint(x), q * _MARGIN) / scale) / scale


def _unit(x: Array) -> Array:
    """The matrix divided by its Frobenius norm; zero stays zero."""
    norm = safe_sqrt(jnp.sum(abs_sq(x)))
    return x / jnp.where(norm > 0, norm, jnp.ones_like(norm)).astype(x.dtype)


def _polar_factor(y: Array) -> Array:
    """The nearest matrix with orthonormal columns, by Newton-Schulz iteration, of one with norm one."""

    def step(y: Array, c: Array) -> tuple[Array, None]:
        a = _dot(adjoint(y), y)
        return c[0] * y + _dot(y, c[1] * a + c[2] * _dot(a, a)), None

    return jax.lax.scan(step, y, jnp.asarray(_STEPS, y.dtype))[0]
