"""The dominant eigenvalue, by matrix-vector products alone."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Inexact, PyTree

from .._support.arguments import check_matrix, inexact
from .._support.arithmetic import at_least_float32, common_dtype, real_dtype, safe_sqrt
from ..tree._math import norm, widened

Operator = Callable[[PyTree], PyTree]


def power_iteration(
    matrix: ArrayLike | Operator,
    *,
    v0: PyTree | None = None,
    num_iters: ArrayLike = 100,
    error_tolerance: ArrayLike = 1e-6,
    precision: jax.lax.PrecisionLike = jax.lax.Precision.HIGHEST,
    key: Array | None = None,
) -> tuple[Inexact[Array, ""], PyTree]:
    r"""Compute the eigenvalue of largest absolute value and its eigenvector by power iteration.

    It works for a matrix and for any linear function, for example a Hessian-vector product: its dominant eigenvalue is
    the curvature of the loss along the sharpest direction.

    $$
    v_{t+1} = \frac{A v_t}{\lVert A v_t \rVert}, \qquad \lambda_t = v_t^{\mathsf H} A v_t
    $$

    The iteration stops when $\lVert A v_t - \lambda_t v_t \rVert < \tau |\lambda_t|$. The error decreases per step by
    the ratio of the second largest absolute eigenvalue to the largest. If both $\lambda$ and $-\lambda$ are dominant,
    as for a bipartite graph, the vectors end up alternating, and one of the two eigenpairs is returned. The matrix may
    have any scale; a zero matrix has eigenvalue zero.

    Forward-mode differentiation is supported (`jax.jvp`, `jax.jacfwd`). Reverse mode is not, because the number of
    iterations depends on the matrix.

    Args:
        matrix: $A$, a square matrix of floats, real or complex; or a linear function from a pytree of arrays to one of
            the same structure and shapes. It should be diagonalizable.
        v0: $v_0$, start vector of any length but zero. It is required for a function; for a matrix the default is
            random, with entries uniform in $[-1, 1]$.
        num_iters: maximum number of iterations.
        error_tolerance: $\tau$, relative residual at which to stop.
        precision: precision of the products with a matrix.
        key: random key for the default $v_0$; `jax.random.key(0)` by default.

    Returns:
        The eigenvalue; and the eigenvector, of unit length and in the structure of `v0`. The arithmetic is done in at
        least float32, but a function is called with vectors in the dtypes of `v0`.

    Raises:
        ValueError: if `matrix` is not a square matrix of floats, a function doesn't preserve structure and shapes, or
            `v0` doesn't fit, or is missing for a function.

    References:
        von Mises and Pollaczek-Geiringer, [Praktische Verfahren der
        Gleichungsauflösung](https://doi.org/10.1002/zamm.19290090206), 1929
    """
    if callable(matrix):
        return _of_function(matrix, v0, num_iters, error_tolerance)
    (matrix,) = inexact("power_iteration", matrix=matrix)
    check_matrix("power_iteration", "matrix", matrix, is_square=True)
    given: Any = _random(matrix, jax.random.key(0) if key is None else key) if v0 is None else v0
    (start,) = inexact("power_iteration", v0=given)
    if start.shape != matrix.shape[:1]:
        raise ValueError(
            f"`power_iteration` needs `v0` of shape {matrix.shape[:1]} for this `matrix`, got {start.shape}."
        )
    dtype = common_dtype(matrix.dtype, start.dtype)
    wide, start = (x.astype(at_least_float32(dtype)) for x in (matrix, start))
    value, vector = _of_function(lambda v: jnp.matmul(wide, v, precision=precision), start, num_iters, error_tolerance)
    return value.astype(dtype), vector.astype(dtype)


def _random(matrix: Array, key: Array) -> Array:
    """A random vector with entries uniform in $[-1, 1]$; for a complex matrix, real and imaginary parts are."""
    dtype = at_least_float32(matrix.dtype)
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.uniform(key, matrix.shape[:1], dtype, -1, 1).astype(matrix.dtype)
    real, imaginary = jax.random.uniform(key, (2, len(matrix)), real_dtype(dtype), -1, 1)
    return jax.lax.complex(real, imaginary)


class _Step(NamedTuple):
    """The state of the iteration."""

    before: PyTree  # the vector of the previous step
    vector: PyTree
    product: PyTree  # A times the vector; all three vectors are normalized
    length_before: Array  # norm of the product in the previous step, before it was normalized
    length: Array  # norm of the product, before it was normalized
    steps: Array

    @property
    def quotient(self) -> Array:
        """The current estimate of the eigenvalue, divided by the norm of the product."""
        return _inner(self.vector, self.product)

    def has_converged(self, tolerance: Array) -> Array:
        """Whether the relative residual is below the tolerance."""
        residual = norm(_combined(self.product, -self.quotient, self.vector))
        return residual.astype(tolerance.dtype) < tolerance * jnp.abs(self.quotient)


def _of_function(function: Operator, v0: PyTree, num_iters: ArrayLike, tolerance: ArrayLike) -> tuple[Array, PyTree]:
    """Run the iteration on a linear function of pytrees."""
    if v0 is None:
        raise ValueError(
            "`power_iteration` of a function needs `v0`, a pytree of arrays like the argument of the function: "
            "`power_iteration(product, v0=params)`."
        )
    v0 = jtu.tree_map(lambda x: inexact("power_iteration", v0=x)[0], v0)
    _check_operator(function, v0)
    start = widened(v0)

    def product_with(vector: PyTree) -> PyTree:
        return _like(start, function(_like(v0, vector)))

    vector, _ = _unit(start, start, _largest(start))
    product = product_with(vector)
    product, length = _unit(product, vector, _largest(product))
    tolerance, num_iters = jnp.asarray(tolerance).astype(length.dtype), jnp.asarray(num_iters).astype(int)

    def step(s: _Step) -> _Step:
        scale = jnp.where(s.length > 0, s.length, jnp.ones_like(s.length))
        product, length = _unit(product_with(s.product), s.product, scale)
        return _Step(s.vector, s.product, product, s.length, length, s.steps + 1)

    def goes_on(s: _Step) -> Array:
        return (s.steps < num_iters) & ~s.has_converged(tolerance)

    begin = _Step(vector, vector, product, length, length, jnp.zeros((), int))
    value, vector = _eigenpair(jax.lax.while_loop(goes_on, step, begin), tolerance)
    return value.astype(common_dtype(*(x.dtype for x in jtu.tree_leaves(v0)))), _like(v0, vector)


def _check_operator(function: Operator, v0: PyTree) -> None:
    """Check that the function preserves the structure and shapes of the vector."""

    def form(tree: PyTree) -> Any:
        return jtu.tree_structure(tree), [x.shape for x in jtu.tree_leaves(tree)]

    product = jax.eval_shape(function, v0)
    if form(product) != form(v0):
        raise ValueError(
            "`power_iteration` needs a function that returns the structure and the shapes of `v0`, "
            f"{jtu.tree_map(lambda x: x.shape, v0)}, got {jtu.tree_map(lambda x: x.shape, product)}."
        )


def _like(likes: PyTree, tree: PyTree) -> PyTree:
    """Cast the arrays to the dtypes of others."""
    return jtu.tree_map(lambda like, x: x.astype(like.dtype), likes, tree)


def _inner(x: PyTree, y: PyTree) -> Array:
    """Inner product over all leaves; complex only if all leaves are."""
    sums = [jnp.sum(a.conj() * b) for a, b in zip(jtu.tree_leaves(x), jtu.tree_leaves(y), strict=True)]
    are_complex = all(jnp.iscomplexobj(s) for s in sums)
    sums = [s if are_complex else s.real for s in sums]
    dtype = common_dtype(*(s.dtype for s in sums))
    return functools.reduce(operator.add, [s.astype(dtype) for s in sums])


def _combined(x: PyTree, factor: ArrayLike, y: PyTree) -> PyTree:
    """`x + factor * y`, leaf by leaf."""
    return jtu.tree_map(lambda a, b: a + jnp.asarray(factor).astype(a.dtype) * b, x, y)


def _largest(tree: PyTree) -> Array:
    """The largest absolute value, or one if all entries are zero."""
    sizes = [jnp.max(jnp.abs(x), initial=0) for x in jtu.tree_leaves(tree)]
    dtype = common_dtype(*(s.dtype for s in sizes))
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, [s.astype(dtype) for s in sizes]))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest))


def _unit(tree: PyTree, otherwise: PyTree, scale: Array) -> tuple[PyTree, Array]:
    """Normalize a tree to unit length, or return `otherwise` if it is zero; also return its length.

    It is first divided by `scale`, a number of about its size, so that no square overflows or underflows.
    """
    scaled = jtu.tree_map(lambda x: x / scale.astype(x.dtype), tree)
    length = norm(scaled).astype(scale.dtype)
    is_zero = length == 0
    divisor = jnp.where(is_zero, jnp.ones_like(length), length)
    unit = jtu.tree_map(lambda x, y: jnp.where(is_zero, y, x / divisor.astype(x.dtype)), scaled, otherwise)
    return unit, length * scale


def _eigenpair(s: _Step, tolerance: Array) -> tuple[Array, PyTree]:
    """Return the eigenpair; for vectors that alternate, combine two of them to an eigenvector."""
    value = s.quotient * s.length.astype(s.quotient.dtype)

    def combination() -> tuple[Array, PyTree]:
        apart = norm(_combined(s.product, -1, s.before)).astype(tolerance.dtype)
        alternates = (apart < tolerance) & (s.length > 0)
        size = safe_sqrt(s.length_before) * safe_sqrt(s.length)
        size = jnp.where(s.quotient.real < 0, -size, size)
        share = size / jnp.where(alternates, s.length, jnp.ones_like(size))
        mixed, _ = _unit(_combined(s.before, share, s.vector), s.product, jnp.ones_like(size))
        vector = jtu.tree_map(lambda x, y: jnp.where(alternates, x, y), mixed, s.product)
        return jnp.where(alternates, size.astype(value.dtype), value), vector

    return jax.lax.cond(s.has_converged(tolerance), lambda: (value, s.product), combination)
