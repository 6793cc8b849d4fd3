"""Inverse p-th roots of positive semidefinite matrices, by matrix products alone."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Inexact

from .._support.arguments import check_matrix, inexact, integral
from .._support.arithmetic import at_least_float32, real_dtype
from .._support.checks import check_integer
from ._power_iteration import power_iteration


class _Iterate(NamedTuple):
    """The state of the coupled Newton iteration."""

    steps: Array
    remainder: Array  # M, which converges to the identity
    root: Array  # H, which converges to the inverse root
    distance: Array  # Frobenius norm of M - I
    goes_on: Array  # whether the last step was an improvement


def matrix_inverse_pth_root(
    matrix: ArrayLike,
    p: ArrayLike,
    num_iters: ArrayLike = 100,
    ridge_epsilon: ArrayLike = 1e-6,
    error_tolerance: ArrayLike = 1e-6,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
) -> tuple[Inexact[Array, "n n"], Float[Array, ""]]:
    r"""Compute the inverse $p$-th root $B^{-1/p}$ of a symmetric positive semidefinite matrix, as Shampoo needs it.

    It uses matrix products only, which accelerators do fast, instead of an eigendecomposition. The matrix is
    regularized to $B = A + \varepsilon \lambda_{\max} I$ with its largest eigenvalue $\lambda_{\max}$ from
    `power_iteration`. The coupled Newton iteration is

    $$
    M_0 = \frac{(p + 1) B}{2 (1 + \varepsilon) \lambda_{\max}}, \qquad
    T_k = \tfrac{p + 1}{p} I - \tfrac1p M_k, \qquad M_{k+1} = T_k^p M_k, \qquad H_{k+1} = H_k T_k
    $$

    It starts from the $H_0$ for which $M_0 = H_0^p B$. As $M_k$ converges to the identity, $H_k$ converges to
    $B^{-1/p}$. A small eigenvalue of $M$ grows by a factor between 2 and $e$ per step; close to one, convergence is
    quadratic.

    The matrix may have any scale. For a zero matrix, which has no inverse root, $\lambda_{\max}$ is set to $10^{-16}$.
    Only forward-mode differentiation is supported, as for `power_iteration`.

    Args:
        matrix: $A$, a symmetric positive semidefinite matrix, or a Hermitian one.
        p: exponent of the root, a positive integer. It takes fewer products if it is known at trace time.
        num_iters: maximum number of iterations.
        ridge_epsilon: $\varepsilon$, relative ridge regularization; it bounds the condition number of $B$ by about $1 /
            \varepsilon$.
        error_tolerance: error at which to stop. The iteration also stops, with the best root so far, if rounding keeps
            the error from decreasing further.
        precision: precision of the matrix products.

    Returns:
        The root, in the dtype of the matrix; and the error, the largest entry of $|M - I|$. The arithmetic is done in
        at least float32.

    Raises:
        ValueError: if `matrix` is not a square matrix of floats, or `p` is not a positive integer.

    References:
        Guo and Higham, [A Schur-Newton Method for the Matrix pth Root and its
        Inverse](https://doi.org/10.1137/050643374), 2006; Iannazzo, [On the Newton Method for the Matrix pth
        Root](https://doi.org/10.1137/050624790), 2006; Anil et al., [Scalable Second Order Optimization for Deep
        Learning](https://arxiv.org/abs/2002.09018), 2020
    """
    (matrix,) = inexact("matrix_inverse_pth_root", matrix=matrix)
    check_matrix("matrix_inverse_pth_root", "matrix", matrix, is_square=True)
    exponent = _exponent(p)
    dtype = at_least_float32(matrix.dtype)
    if matrix.size == 0:
        return matrix, jnp.zeros((), real_dtype(dtype))
    product = functools.partial(jnp.matmul, precision=precision)
    a = matrix.astype(dtype)
    largest = jnp.abs(power_iteration(a, precision=precision)[0])
    largest = jnp.where(largest == 0, 1e-16, largest)
    given = ridge_epsilon, error_tolerance, exponent
    ridge, tolerance, degree = (jnp.asarray(x).astype(largest.dtype) for x in given)
    num_iters = jnp.asarray(num_iters).astype(int)
    identity = jnp.eye(len(a), dtype=dtype)
    scale = (degree + 1) / (2 * (1 + ridge))

    def distance(remainder: Array) -> Array:
        return jnp.linalg.norm(remainder - identity)

    def error(remainder: Array) -> Array:
        return jnp.max(jnp.abs(remainder - identity))

    def step(s: _Iterate) -> _Iterate:
        turn = (identity * (degree + 1).astype(dtype) - s.remainder) / degree.astype(dtype)
        remainder = product(_power(turn, exponent, product), s.remainder)
        now = distance(remainder)
        # In exact arithmetic the distance falls in every step, as each eigenvalue approaches one. For the smallest
        # eigenvalues that is hidden by rounding, so far from the identity a slight increase is tolerated.
        is_better = now < jnp.where(s.distance < 0.1, s.distance, 1.2 * s.distance)
        new = _Iterate(s.steps + 1, remainder, product(s.root, turn), now, is_better)
        return jax.tree_util.tree_map(lambda x, y: jnp.where(is_better, x, y), new, s._replace(goes_on=is_better))

    def goes_on(s: _Iterate) -> Array:
        return s.goes_on & (error(s.remainder) > tolerance) & (s.steps < num_iters)

    # Divide the matrix by its largest eigenvalue, so that nothing overflows or underflows.
    remainder = (a / largest.astype(dtype) + ridge.astype(dtype) * identity) * scale.astype(dtype)
    root = identity * (scale ** (1 / degree)).astype(dtype)
    start = _Iterate(jnp.zeros((), int), remainder, root, distance(remainder), jnp.ones((), bool))
    last = jax.lax.while_loop(goes_on, step, start)
    return (last.root * (largest ** (-1 / degree)).astype(dtype)).astype(matrix.dtype), error(last.remainder)


def _exponent(p: ArrayLike) -> int | Array:
    """Return the exponent as a Python integer if it is known, else as an array.

    Raises:
        ValueError: if it is not a positive integer.
    """
    if isinstance(p, Tracer):
        return integral("matrix_inverse_pth_root", p=p)[0]
    known: Any = p.item() if isinstance(p, (jax.Array, np.ndarray)) and p.size == 1 else p
    check_integer("matrix_inverse_pth_root", "p", known)
    return int(known)


def _power(x: Array, exponent: int | Array, product: Any) -> Array:
    """Raise a matrix to a positive integer power by repeated squaring."""
    if isinstance(exponent, int):
        half = _power(product(x, x), exponent // 2, product) if exponent > 1 else None
        return x if half is None else product(half, x) if exponent % 2 else half

    def square(loop: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        exponent, power, x = loop
        return exponent // 2, jnp.where(exponent % 2 == 1, product(power, x), power), product(x, x)

    start = exponent, jnp.eye(len(x), dtype=x.dtype), x
    return jax.lax.while_loop(lambda loop: loop[0] > 0, square, start)[1]
