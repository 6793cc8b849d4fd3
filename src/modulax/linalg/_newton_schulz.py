"""The nearest (semi-)orthogonal matrix, by matrix products alone.

How the pieces meet: `orthogonalize` brings the singular values into $[0, 1]$ by one of the `PRECONDITIONINGS`, each an
upper bound of the singular values computed from the Gram matrix. It then applies one odd polynomial per step, with the
coefficients of `_table`. `as_coefficients` turns a preset, one triple or a sequence of triples into a tuple of triples;
the Muon transforms convert their field with it, so that mistakes are found before the first step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Inexact

from .._support.arithmetic import abs_sq, at_least_float32, real_dtype, safe_sqrt
from .._support.checks import listing
from ._products import gram

Coefficients = tuple[tuple[float, float, float], ...]


PRESETS: dict[str, Coefficients] = {
    "standard": ((3.4445, -4.7750, 2.0315),),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}


def as_coefficients(x: Any) -> tuple[tuple[Any, Any, Any], ...]:
    """Convert a preset name, one triple or a sequence of triples to a tuple of triples.

    The coefficients may be of any type: Python numbers, arrays, tracers or schedules.

    Raises:
        ValueError: if `x` is none of these.
    """
    if isinstance(x, str):
        if x not in PRESETS:
            raise ValueError(f"No Newton-Schulz coefficients are called {x!r}; the presets are {listing(PRESETS)}.")
        return PRESETS[x]
    rows = [_items(row) for row in _items(x) or ()]
    if not any(rows):
        rows = [_items(x)]
    if not all(row and len(row) == 3 and not any(map(_items, row)) for row in rows):
        raise ValueError(
            f"Newton-Schulz coefficients must be three numbers, or a sequence of triples, one per step, got "
            f"{x!r}. The usual ones are `(3.4445, -4.775, 2.0315)`."
        )
    return tuple(rows)  # pyright: ignore[reportReturnType]


def _items(x: Any) -> tuple[Any, ...] | None:
    """Return the items of a tuple, list or array; None for a single number."""
    return tuple(x) if isinstance(x, (tuple, list)) or getattr(x, "ndim", 0) > 0 else None


def _table(coefficients: Any, steps: int, dtype: Any) -> list[list[Array]]:
    """Return the coefficients of every step."""
    rows = [[jnp.asarray(c).astype(dtype) for c in row] for row in as_coefficients(coefficients)]
    return rows * steps if len(rows) == 1 else rows


def _frobenius(a: Array, eps: Array) -> Array:
    """The Frobenius norm."""
    return safe_sqrt(jnp.trace(a, axis1=-2, axis2=-1).real)[..., None, None] + eps


def _spectral(a: Array, eps: Array) -> Array:
    """The spectral norm, by an eigendecomposition of the Gram matrix."""
    largest = jnp.linalg.eigvalsh(a)[..., -1:, None]
    return safe_sqrt(jnp.maximum(largest, jnp.zeros_like(largest))) + eps


def _aol(a: Array, eps: Array) -> Array:
    """The almost-orthogonal-layer bound, one value per row."""
    rows = jnp.sum(safe_sqrt(abs_sq(a)), axis=-1, keepdims=True)
    return jnp.maximum(safe_sqrt(rows), eps)


def _schatten(a: Array, eps: Array) -> Array:
    """The Schatten 4-norm."""
    fourth = safe_sqrt(jnp.sum(abs_sq(a), axis=(-2, -1), keepdims=True))
    return jnp.maximum(safe_sqrt(fourth), eps)


# Upper bounds of the singular values, from the Gram matrix: the divisor of a matrix, or of each of its rows.
PRECONDITIONINGS: dict[str, Callable[[Array, Array], Array]] = {
    "frobenius": _frobenius,
    "spectral": _spectral,
    "aol": _aol,
    "schatten": _schatten,
}


def check_preconditioning(name: str) -> None:
    """Check the name of a preconditioning.

    Raises:
        ValueError: if it is unknown; the message lists the known ones.
    """
    if name not in PRECONDITIONINGS:
        raise ValueError(f"`preconditioning={name!r}` is unknown; it must be one of {listing(PRECONDITIONINGS)}.")


def orthogonalize(
    x: Inexact[Array, "..."],
    coefficients: str | ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]] = "standard",
    steps: int = 5,
    *,
    preconditioning: str = "frobenius",
    eps: ArrayLike = 1e-8,
) -> Inexact[Array, "..."]:
    r"""Orthogonalize a matrix approximately by Newton-Schulz iteration, as in Muon.

    The result approximates the nearest (semi-)orthogonal matrix, the polar factor: all singular values become about
    one. After a division that brings the singular values into $[0, 1]$, every step applies an odd polynomial to them:

    $$
    X \leftarrow c_0 X + (c_1 A + c_2 A^2) X, \qquad A = X X^{\mathsf H}
    $$

    The usual coefficients amplify small singular values as fast as possible, at the price of not converging: five steps
    map singular values above 0.006 of the norm to the interval from 0.68 to 1.14. A zero matrix stays zero. The matrix
    may have any scale, from the smallest float to the largest; the arithmetic is done in at least float32.

    Args:
        x: a matrix, or a batch of them.
        coefficients: $(c_0, c_1, c_2)$; or a sequence of triples, one per step; or the name of a preset, `"standard"`
            or `"dion"`. The coefficients may be traced.
        steps: number of iterations; ignored if several triples are given.
        preconditioning: how to bound the singular values: by the norm of the matrix, `"frobenius"`; by its `"schatten"`
            4-norm, which is smaller at the same cost and so saves steps; by its `"spectral"` norm, which needs a
            decomposition; or row by row, `"aol"`.
        eps: $\varepsilon$, added to the Frobenius or spectral norm for numerical stability; lower bound of the others.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        ValueError: if `x` has fewer than two axes, or the coefficients or the preconditioning are invalid.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024; Prach and Lampert, [Almost-Orthogonal Layers for
        Efficient General-Purpose Lipschitz Networks](https://arxiv.org/abs/2208.03160), 2022; Boissin et al.,
        [Turbo-Muon](https://arxiv.org/abs/2512.04632), 2025; Grishina et al., [Accelerating Newton-Schulz Iteration for
        Orthogonalization via Chebyshev-type Polynomials](https://arxiv.org/abs/2506.10935), 2025.
    """
    if x.ndim < 2:
        raise ValueError(f"`orthogonalize` needs a matrix or a batch of them, got an array of shape {x.shape}.")
    check_preconditioning(preconditioning)
    if x.size == 0:
        return x
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.astype(at_least_float32(x.dtype))
    y = jnp.swapaxes(y, -1, -2) if is_tall else y  # keeps the Gram matrices small
    # Divide by the largest entry, so that no square overflows or underflows. The result is scale-invariant.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(y), axis=(-2, -1), keepdims=True))
    largest = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    y = y / largest.astype(y.dtype)
    a = gram(y)
    size = PRECONDITIONINGS[preconditioning](a, jnp.asarray(eps).astype(real_dtype(y.dtype)) / largest)
    size = size.astype(y.dtype)
    y, a = y / size, a / (size * jnp.swapaxes(size, -1, -2))
    for i, (c0, c1, c2) in enumerate(_table(coefficients, steps, y.dtype)):
        a = gram(y) if i > 0 else a
        y = c0 * y + (c1 * a + c2 * (a @ a)) @ y
    y = jnp.swapaxes(y, -1, -2) if is_tall else y
    return y.astype(x.dtype)
