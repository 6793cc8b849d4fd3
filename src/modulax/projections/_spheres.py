"""Projections onto the sphere and the ball of the Euclidean norm."""

import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from .._support.arguments import inexact
from ._length import by_length
from ._vector import vector


def projection_l2_sphere(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point of length `scale`, for directions.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_2 = s} \lVert x - p \rVert_2 = s \frac{x}{\lVert x \rVert_2}
    $$

    To the zero vector all points of the sphere are equally near: the result is the one whose entries are all equal and
    positive, and its derivative by $x$, which does not exist, is zero.

    Args:
        tree: $x$, a tree of arrays of floats or complex numbers, all of them together one vector.
        scale: $s$, the radius, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.
    """
    x = vector("projection_l2_sphere", "tree", tree, inexact)
    s = x.radius(scale)
    length, unit, _ = by_length(x.leaves, jnp.zeros_like(s))
    equal = 1 / max(sum(u.size for u in unit), 1) ** 0.5
    return x.rebuild([s.astype(u.dtype) * jnp.where(length == 0, jnp.full_like(u, equal), u) for u in unit])


def projection_l2_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point of length at most `scale`, for bounded weights, gradients or perturbations.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_2 \le s} \lVert x - p \rVert_2 = x \min(1, s / \lVert x \rVert_2)
    $$

    Args:
        tree: $x$, a tree of arrays of floats or complex numbers, all of them together one vector.
        scale: $s$, the radius, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.
    """
    x = vector("projection_l2_ball", "tree", tree, inexact)
    s = x.radius(scale)
    length, _, ratio = by_length(x.leaves, s)
    factor = jnp.where(length > s, ratio, jnp.ones_like(ratio))
    return x.rebuild([leaf * factor.astype(leaf.dtype) for leaf in x.leaves])
