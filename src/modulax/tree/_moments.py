"""Running averages of whole trees, for optimizers that are written as functions of trees."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, PyTree

from .._numerics import abs_sq, at_least_float32, bias, infinity_moment, moment, real_dtype, safe_sqrt


def _wide(x: Array, beside: Array) -> Array:
    """The array in at least float32, as wide as the one beside it; real if it is real."""
    dtype = at_least_float32(x.dtype, beside.dtype)
    return x.astype(dtype if jnp.iscomplexobj(x) else real_dtype(dtype))


def _number(x: ArrayLike, like: Array) -> Array:
    return jnp.asarray(x).astype(real_dtype(like.dtype))


def _combined(rule: Callable[..., Array], moments: PyTree, updates: PyTree, *numbers: ArrayLike) -> PyTree:
    """`rule(*numbers, m, g)` on every pair of leaves, in at least float32; the result has the dtypes of the moments."""

    def leaf(m: Array, g: Array) -> Array:
        wide = _wide(m, g), _wide(g, m)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            return rule(*(_number(x, wide[1]) for x in numbers), *wide).astype(m.dtype)

    return jtu.tree_map(leaf, moments, updates)


def update_moment(updates: PyTree, moments: PyTree, decay: ArrayLike, order: int) -> PyTree:
    r"""The running average of powers, $\beta m + (1 - \beta) g^k$.

    Args:
        updates: the new values $g$.
        moments: the averages $m$ so far.
        decay: $\beta$.
        order: the power $k$.
    """
    return _combined(lambda decay, m, g: moment(decay, m, g**order), moments, updates, decay)


def update_moment_per_elem_norm(updates: PyTree, moments: PyTree, decay: ArrayLike, order: int) -> PyTree:
    r"""The running average of powers of the absolute value, $\beta m + (1 - \beta) |g|^k$: real for complex values too.

    Args:
        updates: the new values $g$.
        moments: the averages $m$ so far.
        decay: $\beta$.
        order: the power $k$.
    """

    def power(g: Array) -> Array:
        return abs_sq(g) ** (order // 2) if order % 2 == 0 else safe_sqrt(abs_sq(g)) ** order

    return _combined(lambda decay, m, g: moment(decay, m, power(g)), moments, updates, decay)


def update_infinity_moment(updates: PyTree, moments: PyTree, decay: ArrayLike, eps: ArrayLike) -> PyTree:
    r"""The running maximum of absolute values, $\max(\beta m, |g| + \varepsilon)$, as in Adamax.

    Args:
        updates: the new values $g$.
        moments: the maxima $m$ so far.
        decay: $\beta$.
        eps: $\varepsilon$.
    """
    return _combined(lambda decay, eps, m, g: infinity_moment(decay, m, g, eps), moments, updates, decay, eps)


def bias_correction(moment: PyTree, decay: ArrayLike, count: ArrayLike) -> PyTree:
    r"""Averages that began at zero, corrected for it: $m / (1 - \beta^t)$.

    Args:
        moment: the averages $m$.
        decay: $\beta$.
        count: the number $t$ of values in them, at least 1.
    """

    def leaf(m: Array) -> Array:
        wide = _wide(m, m)
        with jax.numpy_dtype_promotion("standard"):
            return (wide / bias(_number(decay, wide), _number(count, wide))).astype(m.dtype)

    return jtu.tree_map(leaf, moment)
