"""Inverse roots of positive semidefinite matrices: by matrix products alone, or by their eigenvalues.

The compiler for TPU takes 7 to 20 minutes for the eigendecomposition of 1024 rows, 3 s for Jacobi's method, whose steps
take long, and 20 s for the products.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Inexact

from .._support.arguments import check_matrix, inexact, integral
from .._support.arithmetic import at_least_float32, real_dtype, scalar_like
from .._support.checks import check_integer
from .._support.varying import carried, cond
from ._eigenbasis import identities, largest_entry
from ._platforms import by_platform
from ._power_iteration import power_iteration
from ._products import adjoint, product, product_of_blocks
from ._singular import reciprocal

# JAX has it since 0.9.
_JACOBI = getattr(getattr(jax.lax.linalg, "EighImplementation", None), "JACOBI", None)


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
    a = matrix.astype(dtype)
    largest = jnp.abs(power_iteration(a, precision=precision)[0])
    given = num_iters, ridge_epsilon, error_tolerance
    root, error = _by_newton(a, largest, exponent, *given, functools.partial(jnp.matmul, precision=precision))
    return root.astype(matrix.dtype), error


def _by_newton(
    a: Array,
    largest: Array,
    exponent: int | Array,
    num_iters: ArrayLike,
    ridge_epsilon: ArrayLike,
    error_tolerance: ArrayLike,
    product: Callable[[Array, Array], Array],
) -> tuple[Array, Array]:
    """The root and the error, for the largest eigenvalue and a product."""
    dtype = a.dtype
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
    last = jax.lax.while_loop(goes_on, step, carried(step, start))
    return last.root * (largest ** (-1 / degree)).astype(dtype), error(last.remainder)


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
    return jax.lax.while_loop(lambda loop: loop[0] > 0, square, carried(square, start))[1]


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
    # Columns, because the axes of a batch come first in all arguments of a primitive.
    columns = (jnp.broadcast_to(y, (*x.shape[:-2], 1)) for y in (exponent, eps, fraction))
    return _inverse_power(x + eps.astype(x.dtype) * identities(x), *columns)


@jax.custom_jvp
def _inverse_power(x: Array, exponent: Array, least: Array, fraction: Array) -> Array:
    return _power_of_eigenvalues(x, exponent, least, fraction)


def _by_decomposition(x: Array, exponent: Array, least: Array, fraction: Array, method: Any = None) -> Array:
    values, vectors = _eigenvalues(x, method)
    powers = _raised(values, least, fraction) ** -exponent
    return product(vectors * powers[..., None, :].astype(x.dtype), adjoint(vectors))


def _norm_bound(x: Array) -> Array:
    r"""A number between the spectral norm of a positive semidefinite matrix and $\sqrt[8]{n}$ times as much."""
    most = largest_entry(x, None)
    y = x / most
    for _ in range(2):
        y = product_of_blocks(y, y)
    return jnp.reshape(jnp.linalg.norm(y) ** 0.25 * most, ())


_by_jacobis_method = functools.partial(_by_decomposition, method=_JACOBI)


def _on_tpu(
    x: Array, exponent: Array, least: Array, fraction: Array, otherwise: Callable[..., Array] = _by_jacobis_method
) -> Array:
    """By Newton's method where the inverse of the exponent is an integer; the fraction is added to the eigenvalues."""

    def root(x: Array, degree: Array, fraction: Array) -> Array:
        tolerance = len(x) * float(jnp.finfo(x.dtype).eps)
        return _by_newton(x, _norm_bound(x), degree, 100, fraction, tolerance, product_of_blocks)[0]

    def by_products() -> Array:
        degrees, fractions = degree.astype(jnp.int32).reshape(-1), fraction.reshape(-1)
        roots = jax.vmap(root)(x.reshape(-1, *x.shape[-2:]), degrees, fractions)
        return roots.reshape(x.shape)

    degree = jnp.round(1 / exponent)
    is_whole = jnp.all(jnp.abs(degree * exponent - 1) < 1e-5)
    return cond(~is_whole, lambda: otherwise(x, exponent, least, fraction), by_products)


_power_of_eigenvalues = by_platform("inverse_power", _by_decomposition, {"tpu": _on_tpu})


def _eigenvalues(x: Array, method: Any = None) -> tuple[Array, Array]:
    """Eigenvalues, the largest one last, and eigenvectors."""
    # Within the decomposition, entries are squared.
    scale = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True, initial=jnp.finfo(x.dtype).tiny)
    x = x / scale.astype(x.dtype)
    if method is None:
        values, vectors = jnp.linalg.eigh(x)
    else:
        vectors, values = jax.lax.linalg.eigh(x, implementation=method)
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
