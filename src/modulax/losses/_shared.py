"""Building blocks of several losses, well defined at the edges: zero vectors, empty sums, nothing to average."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from .._plugin.arguments import Requirement, check_one_shape, floating, integral, real_arrays, traced_check
from .._plugin.arrays import common_dtype, ratio
from ..numerics import safe_sqrt
from ._arguments import check_shape, chosen, fitted


def scores_and_labels(owner: str, scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Bool[Array, "... classes"]]:
    """Check scores with classes along the last axis and integer labels; return the scores and the labels one-hot.

    The one-hot row of an invalid label is false everywhere.

    Raises:
        ValueError: if the scores do not hold floats or the labels integers, or their shapes don't match.
    """
    (scores,) = floating(owner, scores=scores)
    (labels,) = integral(owner, labels=labels)
    if not scores.ndim:
        raise ValueError(f"`{owner}` needs `scores` with an axis of classes, got shape ().")
    check_shape(owner, "labels", labels, scores.shape[:-1], "one for every row of `scores`")
    labels = labels.astype(common_dtype(labels.dtype, jnp.int32))  # int8 can't hold 300 class indices
    is_label = labels[..., None] == jax.lax.broadcasted_iota(labels.dtype, scores.shape, scores.ndim - 1)
    message = f"`{owner}(labels=...)` must hold class indices from 0 to {scores.shape[-1] - 1}."
    return traced_check(scores, jnp.any(is_label, -1), message), is_label


def with_targets(owner: str, **arrays: ArrayLike) -> tuple[Array, Array]:
    """Check an array of floats, and one of real numbers of the same shape, such as predictions and targets.

    Raises:
        ValueError: if they hold anything else, or have different shapes.
    """
    (first, x), (second, y) = arrays.items()
    (x,), (y,) = floating(owner, **{first: x}), real_arrays(owner, **{second: y})
    check_one_shape(owner, **{first: x, second: y})
    return x, y


def number_like(owner: str, name: str, x: Array, needs: Requirement, /, **number: ArrayLike) -> Array:
    """Broadcast a hyperparameter to the shape and dtype of an array, which is called `name`."""
    arrays = dict(zip(number, real_arrays(owner, needs, **number), strict=True))
    (broadcast,) = fitted(owner, name, x, **arrays)
    return broadcast.astype(x.dtype)


def unit(x: Array, axes: tuple[int, ...], epsilon: Array | float = 0.0) -> Array:
    """Normalize vectors to unit length, dividing by at least `epsilon`; a zero vector stays zero."""
    # Divide by the largest entry first, so that no square overflows or underflows. The quotient is scale-invariant.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    largest = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    x = x / largest
    length = jnp.maximum(safe_sqrt(jnp.sum(x**2, axes, keepdims=True)), epsilon / largest)
    is_zero = length == 0
    return jnp.where(is_zero, jnp.zeros_like(x), x / jnp.where(is_zero, jnp.ones_like(length), length))


def log_sum_exp(x: Array) -> Array:
    r"""Compute $\log \sum_i e^{x_i}$ along the last axis, which is kept.

    If all entries are $-\infty$, so is the result, and its derivatives are zero.
    """
    largest = jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True, initial=-jnp.inf))
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
    total = jnp.sum(jnp.exp(x - largest), -1, keepdims=True)
    is_zero = total == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, jnp.ones_like(total), total)) + largest)


def mean(x: Array, where: Bool[Array, "..."] | None = None) -> Array:
    """Average the selected entries; the mean of no entries is zero."""
    return ratio(jnp.sum(chosen(where, x)), jnp.sum(jnp.ones_like(x), where=where))


def without_axes(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without these axes: the shape of the examples, where `axes` are those of the classes."""
    return tuple(n for a, n in enumerate(x.shape) if a not in axes)


def mask_like(
    owner: str, where: ArrayLike | None, name: str, x: Array, axes: tuple[int, ...] = ()
) -> Bool[Array, "..."] | None:
    """Broadcast the mask `where` to the shape of an array; None stays None.

    A mask with the shape that the array has without `axes` selects whole examples.

    Raises:
        ValueError: if it isn't boolean, or doesn't fit the array.
    """
    if where is None:
        return None
    mask = jnp.asarray(where)
    if mask.dtype != bool:
        raise ValueError(f"`{owner}(where=...)` must hold booleans, got {mask.dtype}. Convert it: `where != 0`.")
    examples = without_axes(x, axes)
    if axes and mask.shape == examples:
        mask = jnp.expand_dims(mask, axes)
    elif axes and 0 < mask.ndim != x.ndim:
        raise ValueError(
            f"`{owner}` needs `where` of the shape of `{name}`, {x.shape}, or of its examples, {examples}, "
            f"got {mask.shape}."
        )
    return fitted(owner, name, x, where=mask)[0]


def size_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """Count the entries along these axes together."""
    return math.prod(shape[a] for a in axes)
