"""Projections onto the L2 sphere and the L2 ball."""

import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from .._plugin.arguments import inexact
from ._length import by_length
from ._vector import vector


def projection_l2_sphere(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the L2 sphere: rescale to length `scale`.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_2 = s} \lVert x - p \rVert_2 = s \frac{x}{\lVert x \rVert_2}
    $$

    For unit vectors and directions. All points of the sphere are equally near to the zero vector: the result is then
    the one whose entries are equal and positive, and its derivative, which does not exist, is set to zero.

    Args:
        tree: $x$, a tree of arrays of floats, real or complex, taken together as one vector.
        scale: $s \ge 0$, the radius.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.
    """
    x = vector("projection_l2_sphere", "tree", tree, inexact)
    s = x.radius(scale)
    length, unit, _ = by_length(x.leaves, jnp.zeros_like(s))
    equal = 1 / max(sum(u.size for u in unit), 1) ** 0.5
    return x.rebuild([s.astype(u.dtype) * jnp.where(length == 0, jnp.full_like(u, equal), u) for u in unit])


def projection_l2_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the L2 ball: rescale to length `scale` if the vector is longer.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_2 \le s} \lVert x - p \rVert_2 = x \min(1, s / \lVert x \rVert_2)
    $$

    For norm constraints on weights, gradients or perturbations.

    Args:
        tree: $x$, a tree of arrays of floats, real or complex, taken together as one vector.
        scale: $s \ge 0$, the radius.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.
    """
    x = vector("projection_l2_ball", "tree", tree, inexact)
    s = x.radius(scale)
    length, _, ratio = by_length(x.leaves, s)
    factor = jnp.where(length > s, ratio, jnp.ones_like(ratio))
    return x.rebuild([leaf * factor.astype(leaf.dtype) for leaf in x.leaves])
