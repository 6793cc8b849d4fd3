"""What several losses are made of, right also where there is nothing: no length, no terms, nothing to count."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from .._support.arguments import check_shape, chosen, floating, integral
from .._support.arithmetic import common_dtype, ratio, safe_sqrt
from .._support.value_checks import checked


def scores_and_labels(owner: str, scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Bool[Array, "... classes"]]:
    """The scores of classes along the last axis, and which of them is that of the label: none, if that is no class."""
    (scores,) = floating(owner, scores=scores)
    (labels,) = integral(owner, labels=labels)
    if not scores.ndim:
        raise ValueError(f"`{owner}` needs `scores` with an axis of classes, got the shape ().")
    check_shape(owner, "labels", labels, scores.shape[:-1], "one for every row of `scores`")
    labels = labels.astype(common_dtype(labels.dtype, jnp.int32))  # 300 classes are too many for int8
    is_label = labels[..., None] == jax.lax.broadcasted_iota(labels.dtype, scores.shape, scores.ndim - 1)
    message = f"`{owner}(labels=...)` must be the numbers of classes, 0 to {scores.shape[-1] - 1}."
    return checked(scores, jnp.any(is_label, -1), message), is_label


def unit(x: Array, axes: tuple[int, ...], epsilon: Array | float = 0.0) -> Array:
    """The vector divided by its length, or by the least length; zero if that is zero."""
    # Divided by its largest entry first, so that no square overflows or vanishes. The result does not depend on it.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    largest = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    x = x / largest
    length = jnp.maximum(safe_sqrt(jnp.sum(x**2, axes, keepdims=True)), epsilon / largest)
    is_zero = length == 0
    return jnp.where(is_zero, jnp.zeros_like(x), x / jnp.where(is_zero, jnp.ones_like(length), length))


def log_sum_exp(x: Array) -> Array:
    r"""$\log \sum_i e^{x_i}$ along the last axis, which stays; minus infinity, with derivatives of zero, if all are."""
    largest = jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True, initial=-jnp.inf))
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
    total = jnp.sum(jnp.exp(x - largest), -1, keepdims=True)
    is_zero = total == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, jnp.ones_like(total), total)) + largest)


def mean(x: Array, where: Bool[Array, "..."] | None = None) -> Array:
    """The mean of all that counts; of nothing it is zero."""
    return ratio(jnp.sum(chosen(where, x)), jnp.sum(jnp.ones_like(x), where=where))
