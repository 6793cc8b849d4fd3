"""Running averages of whole trees, for optimizers that are written as functions of trees."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arithmetic import abs_sq, at_least_float32, bias, infinity_moment, moment, real_dtype, safe_sqrt
from ._math import trainable


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


def incremental_update(new_tensors: PyTree, old_tensors: PyTree, step_size: ArrayLike) -> PyTree:
    r"""A step of an exponential moving average of parameters: $\alpha\, w + (1 - \alpha)\, \bar w$.

    Each average keeps its dtype, and is computed in at least float32. What is no floating or complex array in a model
    (functions, flags, counters) comes from the new one.

    Args:
        new_tensors: the parameters $w$ as they are, or the whole model.
        old_tensors: their average $\bar w$ so far.
        step_size: the weight $\alpha$ of the new ones.

    References:
        Polyak and Juditsky, [Acceleration of Stochastic Approximation by
        Averaging](https://doi.org/10.1137/0330046), 1992.
    """

    def rule(step_size: Array, mean: Array, x: Array) -> Array:
        return moment(1 - step_size, mean, x, step_size)

    averages = _combined(rule, trainable(old_tensors), trainable(new_tensors), step_size)
    return eqx.combine(averages, new_tensors)


def periodic_update(new_tensors: PyTree, old_tensors: PyTree, steps: ArrayLike, update_period: ArrayLike) -> PyTree:
    """The new parameters at every `update_period`-th step, else the old ones: the target network of a learner.

    Each array keeps the dtype of the old one. What is no array in a model (functions, flags) comes from the new one.

    Args:
        new_tensors: the parameters as they are, or the whole model.
        old_tensors: the copy so far.
        steps: the number of steps done.
        update_period: every how many of them to copy.

    References:
        Mnih et al., [Human-level control through deep reinforcement learning](https://doi.org/10.1038/nature14236),
        2015.
    """
    steps = jnp.asarray(steps)
    is_due = steps % jnp.asarray(update_period, steps.dtype) == 0

    def chosen(new: Any, old: Any) -> Any:
        is_array = isinstance(new, (jax.Array, np.ndarray))
        return jnp.where(is_due, jnp.asarray(new, old.dtype), old) if is_array else new

    return jtu.tree_map(chosen, new_tensors, old_tensors)
