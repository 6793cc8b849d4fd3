"""The nearest (semi-)orthogonal matrix, by matrix products alone.

How the pieces meet: `orthogonalize` brings the singular values into $[0, 1]$ by one of the `PRECONDITIONINGS`, each an
upper bound of the singular values computed from the Gram matrix. It then applies one odd polynomial per step, with the
coefficients of `_table`. `as_coefficients` turns a preset, one triple or a sequence of triples into a tuple of triples;
the Muon transforms convert their field with it, so that mistakes are found before the first step.

All Gram matrices are those of the shorter side: of the rows of a wide matrix, of the columns of a tall one (`_Side`).
So they are small, no matrix is transposed, and devices that share a matrix along its longer side (`Parts`) have to add
up nothing else.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, DTypeLike, Inexact, Shaped

from .._support.arithmetic import abs_sq, at_least_float32, dtype_for, in_dtype, safe_sqrt, scalar_like
from .._support.checks import check_option, listing
from .._support.groups import Groups, max_over, sum_over
from ._products import adjoint

Coefficients = tuple[tuple[float, float, float], ...]


def _with_margin(table: Coefficients, factor: float) -> Coefficients:
    """The table for matrices of norm 1, from one for matrices that are divided by their norm times this factor."""
    (a, b, c), *others = table
    return ((a / factor, b / factor**3, c / factor**5), *others)


PRESETS: dict[str, Coefficients] = {
    "standard": ((3.4445, -4.7750, 2.0315),),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Optimal for five steps: the fifth is the last one, and differs from that of the longer table.
    "polar_express": _with_margin(
        (
            (8.156554524902461, -22.48329292557795, 15.878769915207462),
            (4.042929935166739, -2.808917465908714, 0.5000178451051316),
            (3.8916678022926607, -2.7724841532176825, 0.5060648178503393),
            (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
            (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
        ),
        1.02,
    ),
    "polar_express_8": _with_margin(
        (
            (8.237312490495555, -23.157747414558198, 16.680568411445915),
            (4.082441999064835, -2.893047735332586, 0.5252849256975648),
            (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
            (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
            (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
            (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
            (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
            (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
        ),
        1.01,
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


def _table(coefficients: Any, steps: int, dtype: Any) -> Array:
    """Return the coefficients of every step, one row for each."""
    rows = as_coefficients(coefficients)
    table = [[jnp.asarray(c).astype(dtype) for c in row] for row in (rows * steps if len(rows) == 1 else rows)]
    return jnp.stack([jnp.stack(row) for row in table]) if table else jnp.zeros((0, 3), dtype)


@dataclasses.dataclass(frozen=True)
class Parts:
    """How devices share matrices inside `jax.shard_map`, each with a part of their longer side; by default, no parts.

    Args:
        count: how many devices share a matrix.
        is_tall: whether they divide its rows, and not its columns; None for whole matrices.
        axes: the axes of the mesh that the devices are on.
        groups: the devices of each matrix, by their numbers along the axes.
    """

    count: int = 1
    is_tall: bool | None = None
    axes: tuple[str, ...] = ()
    groups: Groups = ()

    def sum(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The sum over the parts of a matrix."""
        return x if self.count == 1 else sum_over(x, self.axes, self.groups)

    def max(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The maximum over the parts of a matrix, without a derivative."""
        return x if self.count == 1 else max_over(x, self.axes, self.groups)


@dataclasses.dataclass(frozen=True)
class _Side:
    """The side of a matrix on which its Gram matrix is, which is the shorter one: the right of a tall matrix."""

    is_tall: bool
    parts: Parts

    def gram(self, y: Array) -> Array:
        return self.parts.sum(adjoint(y) @ y if self.is_tall else y @ adjoint(y))

    def product(self, a: Array, y: Array) -> Array:
        return y @ a if self.is_tall else a @ y

    def per_vector(self, size: Array) -> Array:
        """One value for each row of the Gram matrix, as divisors of the matrix."""
        return jnp.swapaxes(size, -1, -2) if self.is_tall else size

    def norm(self, y: Array) -> Array:
        """The Frobenius norm."""
        return safe_sqrt(self.parts.sum(jnp.sum(abs_sq(y), axis=(-2, -1), keepdims=True)))

    def step(self, y: Array, c: Array, a: Array | None = None) -> Array:
        """One step of the iteration, with the Gram matrix if it is known."""
        a = self.gram(y) if a is None else a
        wide = c.dtype
        if min(y.shape[-2:]) < a.shape[-1]:
            # A part of a matrix: two products with it are less work than the square of the Gram matrix.
            z = in_dtype(self.product(a, y), wide)
            z = self.product(a, in_dtype(c[1] * in_dtype(y, wide) + c[2] * z, y.dtype))
        else:
            p = c[1] * in_dtype(a, wide) + c[2] * in_dtype(a @ a, wide)
            z = self.product(in_dtype(p, y.dtype), y)
        return in_dtype(c[0] * in_dtype(y, wide) + in_dtype(z, wide), y.dtype)


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


# Upper bounds of the singular values, from the Gram matrix: the divisor of a matrix, or of each row of the Gram matrix.
# None for the Frobenius norm, which needs none.
PRECONDITIONINGS: dict[str, Callable[[Array, Array], Array] | None] = {
    "frobenius": None,
    "spectral": _spectral,
    "aol": _aol,
    "schatten": _schatten,
}


def orthogonalize(
    x: Inexact[Array, "..."],
    coefficients: str | ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]] = "standard",
    steps: int = 5,
    *,
    preconditioning: str = "frobenius",
    eps: ArrayLike = 1e-8,
    dtype: DTypeLike | None = None,
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
        coefficients: $(c_0, c_1, c_2)$; or a sequence of triples, one per step; or the name of a preset: `"standard"`;
            `"dion"`, five triples; `"polar_express"`, which is optimal for five steps, or `"polar_express_8"`, which
            converges in eight. The coefficients may be traced.
        steps: number of iterations; ignored if several triples are given.
        preconditioning: how to bound the singular values: by the norm of the matrix, `"frobenius"`; by its `"schatten"`
            4-norm, which is smaller at the same cost and so saves steps; by its `"spectral"` norm, which needs a
            decomposition; or row by row, `"aol"`.
        eps: $\varepsilon$, added to the Frobenius or spectral norm for numerical stability; lower bound of the others.
        dtype: dtype of the matrices within the iteration, by default at least float32. `jnp.bfloat16` takes half the
            memory. The first division and the coefficients stay in float32.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        ValueError: if `x` has fewer than two axes, or the coefficients or the preconditioning are invalid.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024; Prach and Lampert, [Almost-Orthogonal Layers for
        Efficient General-Purpose Lipschitz Networks](https://arxiv.org/abs/2208.03160), 2022; Boissin et al.,
        [Turbo-Muon](https://arxiv.org/abs/2512.04632), 2025; Grishina et al., [Accelerating Newton-Schulz Iteration for
        Orthogonalization via Chebyshev-type Polynomials](https://arxiv.org/abs/2506.10935), 2025; Amsel et al., [The
        Polar Express](https://arxiv.org/abs/2505.16932), 2025.
    """
    if x.ndim < 2:
        raise ValueError(f"`orthogonalize` needs a matrix or a batch of them, got an array of shape {x.shape}.")
    check_option("orthogonalize", "preconditioning", preconditioning, tuple(PRECONDITIONINGS))
    if x.size == 0:
        return x
    return orthogonalize_parts(x, Parts(), coefficients, steps, preconditioning=preconditioning, eps=eps, dtype=dtype)


def orthogonalize_parts(
    x: Inexact[Array, "..."],
    parts: Parts,
    coefficients: Any,
    steps: int,
    *,
    preconditioning: str,
    eps: ArrayLike,
    dtype: DTypeLike | None,
) -> Inexact[Array, "..."]:
    """`orthogonalize` for matrices of which each device has the part that `parts` describes, or the whole."""
    side = _Side(x.shape[-2] > x.shape[-1] if parts.is_tall is None else parts.is_tall, parts)
    y = in_dtype(x, at_least_float32(x.dtype))
    # Divide by the largest entry, so that no square overflows or underflows. The result is scale-invariant.
    largest = jax.lax.stop_gradient(parts.max(jnp.max(jnp.abs(y), axis=(-2, -1), keepdims=True)))
    largest = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    y = y / largest.astype(y.dtype)
    eps = scalar_like(eps, y) / largest
    table = _table(coefficients, steps, y.dtype)
    narrow = dtype_for(y, dtype) or y.dtype
    bound = PRECONDITIONINGS[preconditioning]
    if bound is None:
        y = in_dtype(y / (side.norm(y) + eps).astype(y.dtype), narrow)
    else:
        a = side.gram(y)
        size = bound(a, eps).astype(y.dtype)
        y = in_dtype(y / side.per_vector(size), narrow)
        if len(table):
            y, table = side.step(y, table[0], in_dtype(a / (size * jnp.swapaxes(size, -1, -2)), narrow)), table[1:]
    # A loop, because the code of a product is large on an accelerator.
    y, _ = jax.lax.scan(lambda y, c: (side.step(y, c), None), y, table)
    return in_dtype(y, x.dtype)
