"""The nearest orthogonal matrix, by products of matrices alone."""

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
    """A tuple of triples: those of a preset, or those given; three numbers are the only triple.

    The numbers may be anything: Python's, arrays, tracers, schedules.
    """
    if isinstance(x, str):
        if x not in PRESETS:
            raise ValueError(f"There are no Newton-Schulz coefficients called {x!r}; there are {listing(PRESETS)}.")
        return PRESETS[x]
    rows = [_items(row) for row in _items(x) or ()]
    if not any(rows):
        rows = [_items(x)]
    if not all(row and len(row) == 3 and not any(map(_items, row)) for row in rows):
        raise ValueError(
            f"Newton-Schulz coefficients are three numbers, or a sequence of triples with one for every step, got "
            f"{x!r}. The usual ones are `(3.4445, -4.775, 2.0315)`."
        )
    return tuple(rows)  # pyright: ignore[reportReturnType]


def _items(x: Any) -> tuple[Any, ...] | None:
    """What is in a tuple, a list or an array; None for a single number."""
    return tuple(x) if isinstance(x, (tuple, list)) or getattr(x, "ndim", 0) > 0 else None


def _table(coefficients: Any, steps: int, dtype: Any) -> list[list[Array]]:
    """The triple of every step."""
    rows = [[jnp.asarray(c).astype(dtype) for c in row] for row in as_coefficients(coefficients)]
    return rows * steps if len(rows) == 1 else rows


def _frobenius(a: Array, eps: Array) -> Array:
    return safe_sqrt(jnp.trace(a, axis1=-2, axis2=-1).real)[..., None, None] + eps


def _spectral(a: Array, eps: Array) -> Array:
    largest = jnp.linalg.eigvalsh(a)[..., -1:, None]
    return safe_sqrt(jnp.maximum(largest, jnp.zeros_like(largest))) + eps


def _aol(a: Array, eps: Array) -> Array:
    rows = jnp.sum(safe_sqrt(abs_sq(a)), axis=-1, keepdims=True)
    return jnp.maximum(safe_sqrt(rows), eps)


def _schatten(a: Array, eps: Array) -> Array:
    fourth = safe_sqrt(jnp.sum(abs_sq(a), axis=(-2, -1), keepdims=True))
    return jnp.maximum(safe_sqrt(fourth), eps)


# What a matrix, or each of its rows, is divided by, from its Gram matrix: an upper bound of the singular values.
PRECONDITIONINGS: dict[str, Callable[[Array, Array], Array]] = {
    "frobenius": _frobenius,
    "spectral": _spectral,
    "aol": _aol,
    "schatten": _schatten,
}


def check_preconditioning(name: str) -> None:
    """Refuses a name that is none, and lists those that are."""
    if name not in PRECONDITIONINGS:
        raise ValueError(f"`preconditioning={name!r}` is unknown; there are {listing(PRECONDITIONINGS)}.")


def orthogonalize(
    x: Inexact[Array, "..."],
    coefficients: str | ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]] = "standard",
    steps: int = 5,
    *,
    preconditioning: str = "frobenius",
    eps: ArrayLike = 1e-8,
) -> Inexact[Array, "..."]:
    r"""Nearly the orthogonal matrix that is nearest to each matrix: the singular values become about one.

    After a division that brings the singular values into $[0, 1]$, every step applies an odd polynomial to them:

    $$
    X \leftarrow c_0 X + (c_1 A + c_2 A^2) X, \qquad A = X X^{\mathsf H}
    $$

    The usual coefficients grow small singular values as fast as possible and do not converge: five steps bring those
    above 0.006 of the norm between 0.68 and 1.14. A matrix of zeros stays zero. The size of the entries does not
    matter, from the smallest float to the largest; the arithmetic is done in at least float32.

    Args:
        x: a matrix, or a batch of them.
        coefficients: $(c_0, c_1, c_2)$; or a triple for each step, of which there are then as many; or the name of a
            preset, `"standard"` or `"dion"`. The numbers may be traced.
        steps: how many steps are made with one triple.
        preconditioning: what bounds the singular values at first: the norm of the matrix, `"frobenius"`, or, for fewer
            steps, its `"schatten"` 4-norm, which is smaller and costs as little; its `"spectral"` norm, which needs a
            decomposition; or `"aol"`, a bound for each row by itself.
        eps: $\varepsilon$, added to the Frobenius or spectral norm; the others are at least that large.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Prach and Lampert, [Almost-Orthogonal Layers for Efficient General-Purpose Lipschitz
        Networks](https://arxiv.org/abs/2208.03160), 2022;
        Boissin et al., [Turbo-Muon](https://arxiv.org/abs/2512.04632), 2025;
        Grishina et al., [Accelerating Newton-Schulz Iteration for Orthogonalization via Chebyshev-type
        Polynomials](https://arxiv.org/abs/2506.10935), 2025.
    """
    if x.ndim < 2:
        raise ValueError(f"`orthogonalize` needs a matrix or a batch of them, got an array of shape {x.shape}.")
    check_preconditioning(preconditioning)
    if x.size == 0:
        return x
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.astype(at_least_float32(x.dtype))
    y = jnp.swapaxes(y, -1, -2) if is_tall else y  # so that the Gram matrices are small
    # Divided by its largest entry, so that no square overflows or vanishes. The result does not depend on it.
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
