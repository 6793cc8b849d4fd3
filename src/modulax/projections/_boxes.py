"""Projections onto sets that bound every entry by itself."""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from .._support.checks import NON_NEGATIVE
from .._support.value_checks import checked
from ._vector import vector


def projection_non_negative(tree: PyTree) -> PyTree:
    r"""The nearest point without negative entries, for weights, intensities or variances.

    $$
    \operatorname*{argmin}_{p \ge 0} \lVert x - p \rVert_2 = \max(x, 0)
    $$

    Args:
        tree: $x$, a tree of arrays of floats.

    Returns:
        A tree of the same structure, shapes and dtypes.
    """
    x = vector("projection_non_negative", "tree", tree)
    return x.rebuild([jax.nn.relu(leaf) for leaf in x.leaves])


def projection_box(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    r"""The nearest point of a box, for parameters that have bounds.

    $$
    \operatorname*{argmin}_{l \le p \le u} \lVert x - p \rVert_2 = \min(\max(x, l), u)
    $$

    Args:
        tree: $x$, a tree of arrays of floats.
        lower: $l$, a number, or a tree of the structure of `tree` or of its beginning, whose leaves broadcast to the
            arrays that they bound. $-\infty$ is no bound.
        upper: $u$, likewise; where it is less than $l$ there is no such point, which `jax.experimental.checkify` tells.

    Returns:
        A tree of the structure, shapes and dtypes of `tree`.
    """
    x = vector("projection_box", "tree", tree)
    bounds = zip(x.bounds("lower", lower), x.bounds("upper", upper), strict=True)
    message = "`projection_box` needs `lower` to be nowhere above `upper`."
    bounds = [(low, checked(high, low <= high, message)) for low, high in bounds]
    return x.rebuild([jnp.clip(leaf, low, high) for leaf, (low, high) in zip(x.leaves, bounds, strict=True)])


def projection_hypercube(tree: PyTree, scale: PyTree = 1) -> PyTree:
    r"""The nearest point with all entries between zero and `scale`, for fractions and probabilities of their own.

    $$
    \operatorname*{argmin}_{0 \le p \le s} \lVert x - p \rVert_2 = \min(\max(x, 0), s)
    $$

    Args:
        tree: $x$, a tree of arrays of floats.
        scale: $s$, the length of the edges, which must not be negative: a number, or a tree like `upper` of
            `projection_box`.

    Returns:
        A tree of the structure, shapes and dtypes of `tree`.
    """
    x = vector("projection_hypercube", "tree", tree)
    message = f"`projection_hypercube(scale=...)` {NON_NEGATIVE.words}."
    edges = [checked(edge, edge >= 0, message) for edge in x.bounds("scale", scale)]
    return x.rebuild([jnp.clip(leaf, 0, edge) for leaf, edge in zip(x.leaves, edges, strict=True)])


def projection_linf_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point with no entry larger than `scale`, for perturbations that may change every entry a little.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_\infty \le s} \lVert x - p \rVert_2 = \min(\max(x, -s), s)
    $$

    Args:
        tree: $x$, a tree of arrays of floats.
        scale: $s$, the radius, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.
    """
    x = vector("projection_linf_ball", "tree", tree)
    s = x.radius(scale)
    return x.rebuild([jnp.clip(leaf, -s, s) for leaf in x.leaves])
