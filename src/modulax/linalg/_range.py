"""The span of the leading singular vectors, approximately, by matrix products alone.

A singular value decomposition is a long program on an accelerator: for one 512 × 512 matrix, the TPU compiler takes a
minute and writes 90 MB. Subspace iteration needs two products with the matrix per round, and an orthonormalization of a
few columns, for which Newton-Schulz iteration is a short loop of products too.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from .._support.arithmetic import abs_sq, at_least_float32, real_dtype, safe_sqrt
from .._support.varying import carried
from ._newton_schulz import PRESETS
from ._products import adjoint, product

# The first steps multiply small singular values by 3.4 each, so that all end above 0.5, even those of a square sketch
# of size `_SHARE`. The last ones converge to one.
_STEPS = np.array([*PRESETS["standard"] * 18, *[(1.5, -0.5, 0.0)] * 6])
# How much of the sketch is added to what is orthonormalized: the columns that a matrix of low rank lacks. Directions
# are lost whose singular values, squared and relative to the largest one, are smaller than that.
_SHARE = 1e-4
# Columns of a block: the length of the program of a product grows with them.
_BLOCK = 256
# By default, a TPU rounds the factors of a product to bfloat16. What is orthonormal depends on all bits; the span on
# fewer, and each product with more is a longer program.
_rough_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGH)


def leading_range(
    x: Inexact[Array, "*batch m n"], rank: int, right: bool = False, *, rounds: int = 4
) -> Inexact[Array, "*batch side rank"]:
    r"""Find orthonormal columns that nearly span the singular vectors of the largest singular values.

    This is subspace iteration from a sketch $\Omega$ of random entries, the same in every call, where
    $\operatorname{orth}$ is the polar factor:

    $$
    Q_{k+1} = \operatorname{orth}\left( X X^{\mathsf H} Q_k \right), \qquad Q_0 = \Omega
    $$

    In contrast to `leading_directions`, the columns are not singular vectors, and in no order. The program is short, as
    it consists of matrix products in loops. The arithmetic is done in at least float32. The matrix may have any scale
    and rank: columns that it lacks are those of $\Omega$.

    Args:
        x: a matrix, or a batch of them.
        rank: number of columns, at most the smaller side of the matrix.
        right: whether to span right singular vectors instead of left ones.
        rounds: number of rounds. After $k$ of them, a direction with the singular value $\sigma_i$ is suppressed by
            $(\sigma_i / \sigma_r)^{2k}$.

    References:
        Halko, Martinsson and Tropp, [Finding structure with randomness: Probabilistic algorithms for constructing
        approximate matrix decompositions](https://arxiv.org/abs/0909.4061), 2011, algorithm 4.4
    """
    wide = x.astype(at_least_float32(x.dtype))
    side = x.shape[-1 if right else -2]
    key = jax.random.key(0, impl="threefry2x32")
    sketch = _unit(jax.random.uniform(key, (side, rank), real_dtype(wide.dtype), -1, 1).astype(wide.dtype))

    def of_one(a: Array) -> Array:
        blocks = _blocks(_scaled(adjoint(a) if right else a))

        def next_round(_: Array, q: Array) -> Array:
            def add(y: Array, block: Array) -> tuple[Array, None]:
                return y + _rough_dot(block, _rough_dot(adjoint(block), q)), None

            zero = jnp.zeros_like(q)
            y = jax.lax.scan(add, carried(lambda y: add(y, blocks[0])[0], zero), blocks)[0]
            return _polar_factor(_unit(_unit(y) + _SHARE * sketch))

        start = carried(functools.partial(next_round, jnp.zeros((), int)), sketch)
        return jax.lax.fori_loop(0, rounds, next_round, start)

    # One at a time: a loop over matrices is a smaller program than products of batches, and compiles faster.
    found = jax.lax.map(of_one, wide.reshape(-1, *x.shape[-2:]))
    return found.reshape(*x.shape[:-2], side, rank).astype(x.dtype)


def _blocks(x: Array) -> Array:
    """The columns in blocks of equal width, with columns of zeros to fill the last one."""
    m, n = x.shape
    count = -(-n // _BLOCK)
    width = -(-n // count) if count == 1 else -(-n // (count * 128)) * 128
    filled = jnp.pad(x, ((0, 0), (0, count * width - n)))
    return jnp.moveaxis(filled.reshape(m, count, width), 1, 0)


def _scaled(x: Array) -> Array:
    """The matrix divided by its largest entry, so that no square overflows or underflows."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
    # A compiled division may multiply by the reciprocal, which is rounded to zero for the largest floats.
    largest = jnp.minimum(largest, np.asarray(jnp.finfo(x.dtype).max / 8, largest.dtype))
    return x / jnp.where(largest > 0, largest, jnp.ones_like(largest)).astype(x.dtype)


def _unit(x: Array) -> Array:
    """The matrix divided by its Frobenius norm; zero stays zero."""
    norm = safe_sqrt(jnp.sum(abs_sq(x)))
    return x / jnp.where(norm > 0, norm, jnp.ones_like(norm)).astype(x.dtype)


def _polar_factor(y: Array) -> Array:
    """The nearest matrix with orthonormal columns, by Newton-Schulz iteration, of one with norm one."""

    def step(y: Array, c: Array) -> tuple[Array, None]:
        a = product(adjoint(y), y)
        return c[0] * y + product(y, c[1] * a + c[2] * product(a, a)), None

    return jax.lax.scan(step, y, jnp.asarray(_STEPS, y.dtype))[0]
