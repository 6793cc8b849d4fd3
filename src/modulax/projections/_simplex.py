"""Projections onto the simplex, the L1 sphere and the L1 ball.

All three subtract one threshold from the entries, or from their absolute values. `_level` finds it, and has a
derivative rule of its own; `_search` is its Newton iteration. `_mapped` turns a `vmap` of the search into one
search over a batch, because `checkify` can't handle a `while_loop` under `vmap`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from .._plugin.trees import total
from ._vector import vector


def projection_simplex(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the simplex: the nearest point with non-negative entries that sum to `scale`.

    $$
    \operatorname*{argmin}_p \lVert x - p \rVert_2 \quad \text{so that} \quad p \ge 0, \; \textstyle\sum_i p_i = s
    $$

    For mixture weights and portfolios. With `scale=1` the result is a probability distribution, the sparsemax of the
    entries. The solution is $\max(x - \tau, 0)$, with the threshold $\tau$ for which the entries sum to $s$.

    The threshold is found by Newton's method, in a few sums over the entries instead of a sort. The derivative is that
    of the closed form on the entries above the threshold.

    Args:
        tree: $x$, a tree of arrays of floats, taken together as one vector. An entry of $-\infty$ becomes zero.
        scale: $s \ge 0$, the sum.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.

    References:
        Michelot, [A Finite Algorithm for Finding the Projection of a Point onto the Canonical Simplex of
        $R^n$](https://doi.org/10.1007/BF00938486), 1986

        Condat, [Fast Projection onto the Simplex and the $\ell_1$ Ball](https://doi.org/10.1007/s10107-015-0946-6),
        2016

        Martins and Astudillo, [From Softmax to Sparsemax](https://arxiv.org/abs/1602.02068), 2016
    """
    x = vector("projection_simplex", "tree", tree)
    level = _level(False, x.leaves, x.radius(scale), jnp.ones((), bool))
    return x.rebuild([_above(leaf, *level) for leaf in x.leaves])


def projection_l1_sphere(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the L1 sphere: the nearest point whose absolute values sum to `scale`.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_1 = s} \lVert x - p \rVert_2
    $$

    The absolute values are projected onto the simplex, and the signs restored. For an entry of zero both signs are
    equally near; the positive one is chosen.

    Args:
        tree: $x$, a tree of arrays of floats, taken together as one vector.
        scale: $s \ge 0$, the radius.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.
    """
    x = vector("projection_l1_sphere", "tree", tree)
    level = _level(True, x.leaves, x.radius(scale), jnp.ones((), bool))
    return x.rebuild([_shrunk(leaf, *level) for leaf in x.leaves])


def projection_l1_ball(tree: PyTree, scale: ArrayLike = 1) -> PyTree:
    r"""Project onto the L1 ball: the nearest point whose absolute values sum to at most `scale`, for sparse solutions.

    $$
    \operatorname*{argmin}_{\lVert p \rVert_1 \le s} \lVert x - p \rVert_2
    $$

    A point inside the ball is returned unchanged. Any other is projected onto the sphere, see `projection_l1_sphere`,
    which sets its small entries to zero.

    Args:
        tree: $x$, a tree of arrays of floats, taken together as one vector.
        scale: $s \ge 0$, the radius.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: if a leaf is not an array of floats, or `scale` is not a scalar or is negative.

    References:
        Duchi et al., [Efficient Projections onto the $\ell_1$-Ball for Learning in High
        Dimensions](https://doi.org/10.1145/1390156.1390176), 2008
    """
    x = vector("projection_l1_ball", "tree", tree)
    s = x.radius(scale)
    # Not `>`: NaN has to count as outside, so that it stays NaN.
    is_outside = jnp.logical_not(total(jnp.abs, x.leaves).astype(x.dtype) <= s)
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
    """Return the largest entry, and the depth of the threshold below it; of the absolute values if `absolute`.

    They are two numbers, because rounding would swallow the depth in their difference if the entries are huge. Both are
    arbitrary unless `is_needed`.
    """
    search = _search_sizes if absolute else _search_values
    return search([x.reshape(-1) for x in leaves], scale, is_needed)


@_level.defjvp
def _level_jvp(absolute, primals, tangents):
    (leaves, scale, is_needed), (d_leaves, d_scale, _) = primals, tangents
    top, depth = _level(absolute, leaves, scale, is_needed)
    # Differentiate sum(max(x - top + depth, 0)) = scale. `top` is a mere shift of reference, so its derivative is zero.
    count, moved = 0, 0
    for x, dx in zip(leaves, d_leaves, strict=True):
        x, dx = (_sign(x) * x, _sign(x) * dx) if absolute else (x, dx)
        is_above = x - top + depth > 0
        count += jnp.sum(is_above, dtype=scale.dtype)
        moved += jnp.sum(jnp.where(is_above, dx, jnp.zeros_like(dx)))
    return (top, depth), (jnp.zeros_like(top), (d_scale - moved) / jnp.maximum(count, 1))


def _sum_and_count(x: Array) -> tuple[Array, Array]:
    """Sum along the last axis and count the positive entries, in one pass."""
    zeros = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32)
    sums, counts = jax.lax.reduce(
        (x, (x > 0).astype(jnp.int32)), zeros, lambda a, b: (a[0] + b[0], a[1] + b[1]), (x.ndim - 1,)
    )
    return sums, counts


def _search(
    size: Callable[[Array], Array], vectors: list[Array], scale: Array, is_needed: Array
) -> tuple[Array, Array]:
    """Find the level of each vector along the last axis, by Newton's method on the depth of the threshold.

    The sum of the excesses over the threshold must equal the scale. It is convex and piecewise linear in the depth. The
    search starts at the scale, which is too deep, so no step overshoots, and the set of entries above the threshold
    shrinks until it is the right one. The excess of the sum over the scale, times the size of that set, falls to a
    quarter or less with every step, so the number of steps is logarithmic.
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
            # A vector whose count no longer falls is finished, and is kept while the others go on.
            shrinks = count < before
            return jnp.where(shrinks, depth - step, depth), jnp.where(shrinks, new, count), count

        most = jnp.full(scale.shape, jnp.iinfo(jnp.int32).max, jnp.int32)
        depth, _, _ = jax.lax.while_loop(is_shrinking, newton, (scale, most - 1, most))
        return top, depth

    return jax.lax.cond(jnp.any(is_needed), search, lambda: (jnp.zeros_like(scale), scale))


def _mapped(search: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Compile the search, and make it one search over a batch under `vmap`: checkify doesn't support a mapped loop."""
    mapped = jax.custom_batching.custom_vmap(search)

    @mapped.def_vmap
    def search_all(axis_size, is_mapped, *arguments):
        def mapped_or_repeated(x, is_mapped):
            return x if is_mapped else jnp.broadcast_to(x, (axis_size, *x.shape))

        return mapped(*jax.tree.map(mapped_or_repeated, arguments, tuple(is_mapped))), (True, True)

    return jax.jit(mapped)


_search_values = _mapped(functools.partial(_search, lambda x: x))


_search_sizes = _mapped(functools.partial(_search, jnp.abs))
