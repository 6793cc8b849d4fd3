"""Non-negative least squares."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import check_matrix, floating, promoted, real_arrays
from .._support.checks import check_integer


def nnls(
    A: ArrayLike, b: ArrayLike, iters: int, unroll: int | bool = 1, L: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Solve non-negative least squares (NNLS) by accelerated projected gradient descent, inside compiled functions.

    $$
    \min_{x \ge 0} \; \lVert A x - b \rVert_2
    $$

    With $Q = A^\top A$, $q = A^\top b$, $y_0 = x_0 = 0$ and $c_0 = 1$,

    $$
    x_{k+1} = \max\!\left(y_k - \tfrac1L (Q y_k - q), 0\right), \qquad
    c_{k+1} = \tfrac12 \left(1 + \sqrt{1 + 4 c_k^2}\right), \qquad
    y_{k+1} = x_{k+1} + \frac{c_k - 1}{c_{k+1}} (x_{k+1} - x_k)
    $$

    Whenever the momentum points uphill, $(y_k - x_{k+1})^\top (x_{k+1} - x_k) > 0$, it is restarted with $c_k = 1$.
    With these restarts the error decreases geometrically if the solution is unique. The entries may have any scale.

    Args:
        A: $A$, a matrix of floats of shape `(m, n)`.
        b: $b$, real numbers of shape `(m,)`; or `(m, k)` for $k$ problems with the same matrix.
        iters: number of iterations.
        unroll: number of iterations to unroll in the compiled loop, as in `jax.lax.scan`.
        L: $L$, upper bound of the largest eigenvalue of $A^\top A$; a smaller value may diverge. The default is the
            smaller of two norms of $A^\top A$, the Frobenius norm and the maximum column sum.

    Returns:
        $x$ of shape `(n,)` or `(n, k)`, in the dtype that `A` and `b` promote to. The arithmetic is done in at least
        float32.

    Raises:
        ValueError: if `A` is not a matrix of floats, `b` or `L` is not real, `b` doesn't fit `A`, or `iters` is not
            a non-negative integer.

    References:
        Polyak, [Projected gradient method for non-negative least square](https://www.ams.org/books/conm/636/), 2015;
        O'Donoghue and Candès, [Adaptive Restart for Accelerated Gradient Schemes](https://arxiv.org/abs/1204.3982),
        2012
    """
    (A,), (b,) = floating("nnls", A=A), real_arrays("nnls", b=b)
    check_matrix("nnls", "A", A)
    if b.ndim not in (1, 2) or len(b) != len(A):
        raise ValueError(f"`nnls` needs `b` of shape ({len(A)},) or ({len(A)}, k) for this `A`, got {b.shape}.")
    check_integer("nnls", "iters", iters, least=0)
    dtype, (a, b) = promoted(A, b)
    scale_a, scale_b = _largest(a), _largest(b)
    a, b = a / scale_a, b / scale_b
    Q, q = a.T @ a, a.T @ b
    if L is None:
        bound = jnp.minimum(jnp.linalg.norm(Q), jnp.max(jnp.sum(jnp.abs(Q), axis=0), initial=0))
    else:
        (L,) = real_arrays("nnls", L=L)
        bound = L.astype(a.dtype) / scale_a / scale_a
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
    """The largest absolute value, or one for a zero array: a divisor that keeps squares from overflowing."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    return jnp.where(largest > 0, largest, jnp.ones_like(largest))
