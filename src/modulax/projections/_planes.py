"""Projections onto a line, a hyperplane and a halfspace."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from .._plugin.trees import inner
from ._length import by_length
from ._vector import Vector, vector


def projection_vector(x: PyTree, a: PyTree) -> PyTree:
    r"""Project onto the line spanned by a vector: the nearest multiple of $a$.

    $$
    \operatorname*{argmin}_{p = t a} \lVert x - p \rVert_2 = \frac{\langle a, x \rangle}{\langle a, a \rangle} a
    $$

    Args:
        x: $x$, a tree of arrays of floats, taken together as one vector.
        a: $a$, a tree of the same structure and shapes. If it is zero, so is the result.

    Returns:
        A tree of the structure, shapes and dtypes of `x`.

    Raises:
        ValueError: if a leaf of `x` is not an array of floats, or `a` differs in structure or shapes.
    """
    point = vector("projection_vector", "x", x)
    _, unit, _ = by_length(point.alike("a", a), jnp.zeros((), point.dtype))
    along = _inner(unit, point)
    return point.rebuild([along * u for u in unit])


def projection_hyperplane(x: PyTree, a: PyTree, b: ArrayLike) -> PyTree:
    r"""Project onto a hyperplane: the nearest solution of one linear equation.

    $$
    \operatorname*{argmin}_{\langle a, p \rangle = b} \lVert x - p \rVert_2
    = x + \frac{b - \langle a, x \rangle}{\langle a, a \rangle} a
    $$

    Args:
        x: $x$, a tree of arrays of floats, taken together as one vector.
        a: $a$, the normal vector, a tree of the same structure and shapes. If it is zero there is no hyperplane, and
            $x$ is returned.
        b: $b$, the offset, a number.

    Returns:
        A tree of the structure, shapes and dtypes of `x`.

    Raises:
        ValueError: if a leaf of `x` is not an array of floats, `a` differs in structure or shapes, or `b` is not a
            scalar.
    """
    point, unit, below = _below("projection_hyperplane", x, a, b)
    return point.rebuild([leaf + below * u for leaf, u in zip(point.leaves, unit, strict=True)])


def projection_halfspace(x: PyTree, a: PyTree, b: ArrayLike) -> PyTree:
    r"""Project onto a halfspace: the nearest point that satisfies one linear inequality.

    $$
    \operatorname*{argmin}_{\langle a, p \rangle \le b} \lVert x - p \rVert_2
    = x - \frac{\max(\langle a, x \rangle - b, 0)}{\langle a, a \rangle} a
    $$

    Args:
        x: $x$, a tree of arrays of floats, taken together as one vector.
        a: $a$, the normal vector, a tree of the same structure and shapes. If it is zero there is no halfspace, and $x$
            is returned.
        b: $b$, the offset, a number.

    Returns:
        A tree of the structure, shapes and dtypes of `x`.

    Raises:
        ValueError: if a leaf of `x` is not an array of floats, `a` differs in structure or shapes, or `b` is not a
            scalar.
    """
    point, unit, below = _below("projection_halfspace", x, a, b)
    below = jnp.minimum(below, 0)
    return point.rebuild([leaf + below * u for leaf, u in zip(point.leaves, unit, strict=True)])


def _below(owner: str, x: PyTree, a: PyTree, b: ArrayLike) -> tuple[Vector, list[Array], Array]:
    """Return `x` as a vector, the unit normal, and the signed distance from `x` to the hyperplane along it."""
    point = vector(owner, "x", x)
    _, unit, offset = by_length(point.alike("a", a), point.number("b", b))
    return point, unit, offset - _inner(unit, point)


def _inner(unit: list[Array], point: Vector) -> Array:
    return inner(unit, point.leaves).astype(point.dtype)
