"""Projections onto sets that bound each entry separately."""

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, PyTree

from .._plugin.arguments import NON_NEGATIVE, traced_check
from ._vector import vector


def projection_non_negative(tree: PyTree) -> PyTree:
    r"""Project onto the non-negative orthant: the nearest point without negative entries.

    $$
    \operatorname*{argmin}_{p \ge 0} \lVert x - p \rVert_2 = \max(x, 0)
    $$

    For weights, intensities or variances.

    Args:
        tree: $x$, a tree of arrays of floats.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats.
    """
    x = vector("projection_non_negative", "tree", tree)
    return x.rebuild([jax.nn.relu(leaf) for leaf in x.leaves])


def projection_box(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    r"""Project onto a box: clip each entry to its lower and upper bound.

    $$
    \operatorname*{argmin}_{l \le p \le u} \lVert x - p \rVert_2 = \min(\max(x, l), u)
    $$

    Args:
        tree: $x$, a tree of arrays of floats.
        lower: $l$, lower bounds: a number, or a tree with the structure of `tree` or a prefix of it, whose leaves
            broadcast to the arrays that they bound. $-\infty$ leaves an entry unbounded.
        upper: $u$, upper bounds, likewise. Where $u < l$ the box is empty; `jax.experimental.checkify` reports it.

    Returns:
        A tree of the structure, shapes and dtypes of `tree`.

    Raises:
        ValueError: if a leaf is not an array of floats, a bound doesn't fit the tree, or a lower bound that is known
            when the function is traced exceeds the upper one.
    """
    x = vector("projection_box", "tree", tree)
    bounds = zip(x.bounds("lower", lower), x.bounds("upper", upper), strict=True)
    message = "`projection_box` needs `lower <= upper` in every entry."
    bounds = [(low, traced_check(high, low <= high, message)) for low, high in bounds]
    return x.rebuild([jnp.clip(leaf, low, high) for leaf, (low, high) in zip(x.leaves, bounds, strict=True)])


def projection_hypercube(tree: PyTree, scale: PyTree = 1) -> PyTree:
    r"""Project onto a hypercube: clip each entry to the interval from zero to `scale`.

    $$
    \operatorname*{argmin}_{0 \le p \le s} \lVert x - p \rVert_2 = \min(\max(x, 0), s)
    $$

    For fractions, and for probabilities that need not sum to one.

    Args:
        tree: $x$, a tree of arrays of floats.
        scale: $s \ge 0$, edge length: a number, or a tree like `upper` of `projection_box`.

    Returns:
        A tree of the structure, shapes and dtypes of `tree`.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` doesn't fit the tree or is negative.
    """
    x = vector("projection_hypercube", "tree", tree)
    message = f"`projection_hypercube(scale=...)` {NON_NEGATIVE.words}."
    edges = [traced_check(edge, edge >= 0, message) for edge in x.bounds("scale", scale)]
    return x.rebuild([jnp.clip(leaf, 0, edge) for leaf, edge in zip(x.leaves, edges, strict=True)])


def projection_linf_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the L-infinity ball: clip each entry to $[-s, s]$.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_\infty \le s} \lVert x - p \rVert_2 = \min(\max(x, -s), s)
    $$

    For adversarial perturbations that may change every entry a little.

    Args:
        tree: $x$, a tree of arrays of floats.
        scale: $s \ge 0$, the radius.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.
    """
    x = vector("projection_linf_ball", "tree", tree)
    s = x.radius(scale)
    return x.rebuild([jnp.clip(leaf, -s, s) for leaf in x.leaves])
