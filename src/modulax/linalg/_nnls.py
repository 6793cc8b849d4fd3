"""Least squares with no negative number in the solution."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import check_matrix, floating, real, widened
from .._support.checks import check_integer


def nnls(
    A: ArrayLike, b: ArrayLike, iters: int, unroll: int | bool = 1, L: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Least squares with no negative number in the solution, inside of a compiled function.

    $$
    \min_{x \ge 0} \; \lVert A x - b \rVert_2
    $$

    by projected gradient steps with momentum. With $Q = A^\top A$, $q = A^\top b$, $y_0 = x_0 = 0$ and $c_0 = 1$,

    $$
    x_{k+1} = \max\!\left(y_k - \tfrac1L (Q y_k - q), 0\right), \qquad
    c_{k+1} = \tfrac12 \left(1 + \sqrt{1 + 4 c_k^2}\right), \qquad
    y_{k+1} = x_{k+1} + \frac{c_k - 1}{c_{k+1}} (x_{k+1} - x_k)
    $$

    Whenever the momentum points uphill, $(y_k - x_{k+1})^\top (x_{k+1} - x_k) > 0$, it starts anew, $c_k = 1$, so that
    the error falls geometrically where the solution is unique. The size of the entries does not matter.

    Args:
        A: a matrix of floats of shape `(m, n)`.
        b: real numbers of shape `(m,)`; or `(m, k)`, which are $k$ problems with one matrix.
        iters: how many steps are made.
        unroll: how many of them are one round of the compiled loop; as in `jax.lax.scan`.
        L: no less than the largest eigenvalue of $A^\top A$, or the steps may diverge. By default the smaller of two
            norms of this matrix: the square root of the sum of squares, and the largest sum of a column.

    Returns:
        $x$ of shape `(n,)` or `(n, k)`. The arithmetic is done in at least float32.

    References:
        Polyak, [Projected gradient method for non-negative least
        square](https://www.ams.org/books/conm/636/), 2015;
        O'Donoghue and Candès, [Adaptive Restart for Accelerated Gradient
        Schemes](https://arxiv.org/abs/1204.3982), 2012
    """
    (A,), (b,) = floating("nnls", A=A), real("nnls", b=b)
    check_matrix("nnls", "A", A)
    if b.ndim not in (1, 2) or len(b) != len(A):
        raise ValueError(f"`nnls` needs `b` of shape ({len(A)},) or ({len(A)}, k) for this `A`, got {b.shape}.")
    check_integer("nnls", "iters", iters, least=0)
    dtype, (a, b) = widened(A, b)
    scale_a, scale_b = _largest(a), _largest(b)
    a, b = a / scale_a, b / scale_b
    Q, q = a.T @ a, a.T @ b
    if L is None:
        bound = jnp.minimum(jnp.linalg.norm(Q), jnp.max(jnp.sum(jnp.abs(Q), axis=0), initial=0))
    else:
        bound = jnp.asarray(L).astype(a.dtype) / scale_a / scale_a
    bound = jax.lax.stop_gradient(jnp.where(bound == 0, jnp.ones_like(bound), bound))

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        x, y, c = carry
        new = jnp.maximum(y - (Q @ y - q) / bound, jnp.zeros_like(y))
        is_uphill = jnp.sum((y - new) * (new - x), axis=0, keepdims=True) > 0
        c = jnp.where(is_uphill, jnp.ones_like(c), c)
        c_next = (1 + jnp.sqrt(1 + 4 * c**2)) / 2
        y = new + (c - 1) / c_next * (new - x)
        return (new, y, c_next), None

    x = jnp.zeros_like(q)
    ones = jnp.ones_like(x, shape=(1, *x.shape[1:]))
    (x, _, _), _ = jax.lax.scan(step, (x, x, ones), length=iters, unroll=unroll)
    return (x * (scale_b / scale_a)).astype(dtype)


def _largest(x: Array) -> Array:
    """The largest absolute value, or one: what an array can be divided by, so that its squares do not overflow."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest))
