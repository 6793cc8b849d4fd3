"""Moving averages of trees, for optimizers written as functions of trees."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    bias,
    infinity_moment,
    moment,
    real_dtype,
    safe_sqrt,
    scalar_like,
)
from .._support.checks import listing
from .._support.placement import typed_like
from ._math import trainable
from ._paths import named_leaves


def _wide(x: Array, beside: Array) -> Array:
    """Cast an array to at least float32 and to the precision of another; it stays real if it is real."""
    dtype = at_least_float32(x.dtype, beside.dtype)
    return x.astype(dtype if jnp.iscomplexobj(x) else real_dtype(dtype))


@contextlib.contextmanager
def _naming_leaves(owner: str, **trees: PyTree) -> Iterator[None]:
    """Explain the error of trees that don't have the same leaves."""
    try:
        yield
    except (ValueError, TypeError) as error:
        (one, other), (first, second) = trees, [{n for n, _ in named_leaves(tree)} for tree in trees.values()]
        if first == second:
            raise
        lacking, unknown = ([".".join(names) for names in sorted(xs)] for xs in (first - second, second - first))
        raise ValueError(
            f"`{owner}`: `{one}` and `{other}` must have the same leaves; only `{one}` has {listing(lacking)}, only "
            f"`{other}` has {listing(unknown)}."
        ) from error


def _combined(rule: Callable[..., Array], moments: PyTree, updates: PyTree, *numbers: ArrayLike) -> PyTree:
    """Apply `rule(*numbers, m, g)` to pairs of leaves in at least float32; the result has the dtypes of the moments.

    Where there is no new value (None), there is no result.
    """

    def leaf(m: Array, g: Array | None) -> Array | None:
        if g is None:
            return None
        wide = _wide(m, g), _wide(g, m)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            return rule(*(scalar_like(x, wide[1]) for x in numbers), *wide).astype(m.dtype)

    return jtu.tree_map(leaf, moments, updates)


def update_moment(updates: PyTree, moments: PyTree, decay: ArrayLike, order: int) -> PyTree:
    r"""Update the exponential moving average of the $k$-th power, $\beta m + (1 - \beta) g^k$.

    Args:
        updates: $g$, the new values, such as gradients.
        moments: $m$, the current averages.
        decay: $\beta$, exponential decay rate.
        order: $k$, the power: 1 for the first moment, 2 for the second.
    """
    return _combined(lambda decay, m, g: moment(decay, m, g**order), moments, updates, decay)


def update_moment_per_elem_norm(updates: PyTree, moments: PyTree, decay: ArrayLike, order: int) -> PyTree:
    r"""Update the moving average of powers of the absolute value, $\beta m + (1 - \beta) |g|^k$.

    Unlike `update_moment`, the result is real for complex values.

    Args:
        updates: $g$, the new values, such as gradients.
        moments: $m$, the current averages.
        decay: $\beta$, exponential decay rate.
        order: $k$, the power.
    """

    def power(g: Array) -> Array:
        # An even power needs no root, which would round.
        return abs_sq(g) ** (order // 2) if order % 2 == 0 else safe_sqrt(abs_sq(g)) ** order

    return _combined(lambda decay, m, g: moment(decay, m, power(g)), moments, updates, decay)


def update_infinity_moment(updates: PyTree, moments: PyTree, decay: ArrayLike, eps: ArrayLike) -> PyTree:
    r"""Update the exponentially decayed maximum of absolute values, $\max(\beta m, |g| + \varepsilon)$, as in Adamax.

    Args:
        updates: $g$, the new values, such as gradients.
        moments: $m$, the current maxima.
        decay: $\beta$, exponential decay rate.
        eps: $\varepsilon$, term for numerical stability.
    """
    return _combined(lambda decay, eps, m, g: infinity_moment(decay, m, g, eps), moments, updates, decay, eps)


def bias_correction(moment: PyTree, decay: ArrayLike, count: ArrayLike) -> PyTree:
    r"""Correct the bias of moving averages that started at zero, $m / (1 - \beta^t)$.

    Args:
        moment: $m$, the averages.
        decay: $\beta$, exponential decay rate.
        count: $t \ge 1$, number of values that went into the averages.
    """

    def leaf(m: Array) -> Array:
        wide = _wide(m, m)
        with jax.numpy_dtype_promotion("standard"):
            return (wide / bias(scalar_like(decay, wide), scalar_like(count, wide))).astype(m.dtype)

    return jtu.tree_map(leaf, moment)


def incremental_update(new_tensors: PyTree, old_tensors: PyTree, step_size: ArrayLike) -> PyTree:
    r"""Update an exponential moving average (EMA) of parameters, $\alpha\, w + (1 - \alpha)\, \bar w$.

    This is Polyak averaging, as for evaluation parameters or a slowly moving target network. Each average keeps its
    dtype and is computed in at least float32. Leaves of a model that are not floating-point or complex arrays
    (functions, flags, counters) are taken from the new one. `ParamEMA` keeps an average in the state of the optimizer.

    Args:
        new_tensors: $w$, the current parameters, or the whole model.
        old_tensors: $\bar w$, their average so far.
        step_size: $\alpha$, weight of the new parameters.

    References:
        Polyak and Juditsky, [Acceleration of Stochastic Approximation by Averaging](https://doi.org/10.1137/0330046),
        1992.
    """

    def rule(step_size: Array, mean: Array, x: Array) -> Array:
        # The weight of the new value is given and not computed as `1 - (1 - step_size)`, which would round a small one.
        return moment(1 - step_size, mean, x, step_size)

    with _naming_leaves("incremental_update", new_tensors=new_tensors, old_tensors=old_tensors):
        averages = _combined(rule, trainable(old_tensors), trainable(new_tensors), step_size)
        return eqx.combine(averages, new_tensors)


def periodic_update(new_tensors: PyTree, old_tensors: PyTree, steps: ArrayLike, update_period: ArrayLike) -> PyTree:
    """Copy the new parameters every `update_period` steps, and keep the old ones otherwise: a target network.

    Each array keeps the dtype of the old one. Leaves of a model that are not arrays (functions, flags) are taken from
    the new one.

    Args:
        new_tensors: the current parameters, or the whole model.
        old_tensors: the copy so far.
        steps: number of steps taken.
        update_period: number of steps between copies.

    References:
        Mnih et al., [Human-level control through deep reinforcement learning](https://doi.org/10.1038/nature14236),
        2015.
    """
    steps = jnp.asarray(steps)
    is_due = steps % jnp.asarray(update_period, steps.dtype) == 0

    def chosen(new: Any, old: Any) -> Any:
        is_array = isinstance(new, (jax.Array, np.ndarray))
        return jnp.where(is_due, typed_like(jnp.asarray(new, old.dtype), old), old) if is_array else new

    with _naming_leaves("periodic_update", new_tensors=new_tensors, old_tensors=old_tensors):
        return jtu.tree_map(chosen, new_tensors, old_tensors)
