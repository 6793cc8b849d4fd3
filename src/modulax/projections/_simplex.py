"""Projections onto the simplex, and onto the sphere and the ball of the sum of absolute values."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from ..tree._math import total
from ._vector import vector


def projection_simplex(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point without negative entries whose sum is `scale`, for weights that share something.

    With `scale` one these are probabilities: the result is the sparsemax of the entries. It is $\max(x - \tau, 0)$ with
    the threshold $\tau$ for which the sum is right.

    $$
    \operatorname*{argmin}_p \lVert x - p \rVert_2 \quad \text{so that} \quad p \ge 0, \; \textstyle\sum_i p_i = s
    $$

    The threshold is found by Newton's method, which ends after a few sums over the entries instead of sorting them. The
    derivative is that of the closed form on the entries above the threshold.

    Args:
        tree: $x$, a tree of arrays of floats, all of them together one vector. An entry of $-\infty$ gets no weight.
        scale: $s$, the sum, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.

    References:
        Michelot, [A Finite Algorithm for Finding the Projection of a Point onto the Canonical Simplex of
        $R^n$](https://doi.org/10.1007/BF00938486), 1986

        Condat, [Fast Projection onto the Simplex and the $\ell_1$
        Ball](https://doi.org/10.1007/s10107-015-0946-6), 2016

        Martins and Astudillo, [From Softmax to Sparsemax](https://arxiv.org/abs/1602.02068), 2016
    """
    x = vector("projection_simplex", "tree", tree)
    level = _level(False, x.leaves, x.radius(scale), jnp.ones((), bool))
    return x.rebuild([_above(leaf, *level) for leaf in x.leaves])


def projection_l1_sphere(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point whose absolute values have the sum `scale`.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_1 = s} \lVert x - p \rVert_2
    $$

    The absolute values are projected onto the simplex, and keep their signs. Where an entry is zero both signs are
    equally near; it becomes positive.

    Args:
        tree: $x$, a tree of arrays of floats, all of them together one vector.
        scale: $s$, the radius, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.
    """
    x = vector("projection_l1_sphere", "tree", tree)
    level = _level(True, x.leaves, x.radius(scale), jnp.ones((), bool))
    return x.rebuild([_shrunk(leaf, *level) for leaf in x.leaves])


def projection_l1_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""The nearest point whose absolute values have at most the sum `scale`, for solutions with few entries.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_1 \le s} \lVert x - p \rVert_2
    $$

    A point of the ball stays what it is; any other goes to the sphere, see `projection_l1_sphere`, and small entries of
    it become zero.

    Args:
        tree: $x$, a tree of arrays of floats, all of them together one vector.
        scale: $s$, the radius, a number that must not be negative.

    Returns:
        A tree of the same structure, shapes and dtypes.

    References:
        Duchi et al., [Efficient Projections onto the $\ell_1$-Ball for Learning in High
        Dimensions](https://doi.org/10.1145/1390156.1390176), 2008
    """
    x = vector("projection_l1_ball", "tree", tree)
    s = x.radius(scale)
    is_outside = jnp.logical_not(total(jnp.abs, x.leaves).astype(x.dtype) <= s)  # so is NaN, which stays NaN
    level = _level(True, x.leaves, s, is_outside)
    return x.rebuild([jnp.where(is_outside, _shrunk(leaf, *level), leaf) for leaf in x.leaves])


def _above(x: Array, top: Array, depth: Array) -> Array:
    return jax.nn.relu(x - top + depth)


def _shrunk(x: Array, top: Array, depth: Array) -> Array:
    sign = _sign(x)
    return sign * _above(sign * x, top, depth)


def _sign(x: Array) -> Array:
    return jnp.where(x < 0, -jnp.ones_like(x), jnp.ones_like(x))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _level(absolute: bool, leaves: list[Array], scale: Array, is_needed: Array) -> tuple[Array, Array]:
    """The largest entry, and how far below it the threshold lies: two numbers, since huge entries would swallow one.

    If `absolute`, of the absolute values. Anything if it is not needed.
    """
    search = _search_sizes if absolute else _search_values
    return search([x.reshape(-1) for x in leaves], scale, is_needed)


@_level.defjvp
def _level_jvp(absolute, primals, tangents):
    (leaves, scale, is_needed), (d_leaves, d_scale, _) = primals, tangents
    top, depth = _level(absolute, leaves, scale, is_needed)
    # The sum of max(x - top + depth, 0) is the scale. The largest entry is a constant, by which both sides are shifted.
    count, moved = 0, 0
    for x, dx in zip(leaves, d_leaves, strict=True):
        x, dx = (_sign(x) * x, _sign(x) * dx) if absolute else (x, dx)
        is_above = x - top + depth > 0
        count += jnp.sum(is_above, dtype=scale.dtype)
        moved += jnp.sum(jnp.where(is_above, dx, jnp.zeros_like(dx)))
    return (top, depth), (jnp.zeros_like(top), (d_scale - moved) / jnp.maximum(count, 1))


def _sum_and_count(x: Array) -> tuple[Array, Array]:
    """The sum along the last axis, and how many entries are positive, in one pass."""
    zeros = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32)
    sums, counts = jax.lax.reduce(
        (x, (x > 0).astype(jnp.int32)), zeros, lambda a, b: (a[0] + b[0], a[1] + b[1]), (x.ndim - 1,)
    )
    return sums, counts


def _search(
    size: Callable[[Array], Array], vectors: list[Array], scale: Array, is_needed: Array
) -> tuple[Array, Array]:
    """The levels of vectors along the last axis, by Newton's method for the depth at which the sum above is the scale.

    The sum is convex in the depth and piecewise linear. The first depth, which is the scale, is too large, so no step
    leads too far, and the entries above the threshold become fewer until they are the right ones. The surplus times
    their number falls to a quarter or less with every step: there are logarithmically many.
    """

    def search():
        top = functools.reduce(
            jnp.maximum, [jnp.max(size(x), -1, initial=-jnp.inf) for x in vectors], jnp.full_like(scale, -jnp.inf)
        )

        def is_shrinking(carry):
            _, count, before = carry
            return jnp.any(count < before)

        def newton(carry):
            depth, count, before = carry
            pairs = [_sum_and_count(_above(size(x), top[..., None], depth[..., None])) for x in vectors]
            new = sum((n for _, n in pairs), jnp.zeros_like(count))
            step = (sum(s for s, _ in pairs) - scale) / jnp.maximum(new, 1).astype(scale.dtype)
            # What has shrunk to its end stays as it is while others shrink.
            shrinks = count < before
            return jnp.where(shrinks, depth - step, depth), jnp.where(shrinks, new, count), count

        most = jnp.full(scale.shape, jnp.iinfo(jnp.int32).max, jnp.int32)
        depth, _, _ = jax.lax.while_loop(is_shrinking, newton, (scale, most - 1, most))
        return top, depth

    return jax.lax.cond(jnp.any(is_needed), search, lambda: (jnp.zeros_like(scale), scale))


def _mapped(search: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """The search as a program, which under `vmap` is one search of all: checkify knows no loop that was mapped."""
    mapped = jax.custom_batching.custom_vmap(search)

    @mapped.def_vmap
    def search_all(axis_size, is_mapped, *arguments):
        def mapped_or_repeated(x, is_mapped):
            return x if is_mapped else jnp.broadcast_to(x, (axis_size, *x.shape))

        return mapped(*jax.tree.map(mapped_or_repeated, arguments, tuple(is_mapped))), (True, True)

    return jax.jit(mapped)


_search_values = _mapped(functools.partial(_search, lambda x: x))


_search_sizes = _mapped(functools.partial(_search, jnp.abs))
