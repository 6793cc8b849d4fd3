"""Listwise ranking losses."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import broadcast_shape, promoted, real_arrays
from ._arguments import chosen
from ._shared import log_sum_exp, mask_like, mean, with_targets


def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., Any] | None = jnp.mean,
) -> Float[Array, "..."]:
    r"""Compute the listwise softmax ranking loss (ListNet): cross-entropy of relevance labels and softmaxed scores.

    $$
    L(s, y) = -\sum_i w_i \, y_i \log \frac{e^{s_i}}{\sum_j e^{s_j}}
    $$

    Use it for learning to rank: the items of a list compete with each other. With a single relevant item it is the
    cross-entropy of choosing that item.

    Args:
        logits: $s$, floats: the scores of the items of a list, along the last axis. An item with score $-\infty$
            contributes nothing if its label is zero, and makes the loss infinite if its label is positive.
        labels: $y$, relevance of the items, of the same shape.
        where: mask of the valid items, for lists of different lengths; masked values are ignored.
        weights: $w$, item weights, in a shape that broadcasts to that of the logits; 1 by default.
        reduce_fn: function that reduces the losses of all lists to one value. It is called with the losses and with
            `where=`, a mask of the lists with at least one item, or None. The mean over no lists is zero. None keeps
            one loss per list.

    Returns:
        The reduced loss, in the dtype that logits, labels and weights promote to. A list without items has loss zero.

    Raises:
        ValueError: if `logits` does not hold floats, labels or weights are not real, or a shape or the mask doesn't
            fit.

    References:
        Cao et al., [Learning to Rank: From Pairwise Approach to Listwise
        Approach](https://doi.org/10.1145/1273496.1273513), 2007

        Bruch et al., [An Analysis of the Softmax Cross Entropy Loss for Learning-to-Rank with Binary
        Relevance](https://doi.org/10.1145/3341981.3344221), 2019
    """
    owner = "ranking_softmax_loss"
    logits, labels = with_targets(owner, logits=logits, labels=labels)
    (weights,) = real_arrays(owner, weights=1 if weights is None else weights)
    if not logits.ndim:
        raise ValueError(f"`{owner}` needs `logits` with an axis of items, got shape ().")
    if broadcast_shape(owner, logits=logits, weights=weights) != logits.shape:
        raise ValueError(
            f"`{owner}` needs `weights` to broadcast to the shape of `logits`, {logits.shape}, got {weights.shape}."
        )
    mask = mask_like(owner, where, "logits", logits)
    dtype, (s, y, w) = promoted(logits, labels, weights)
    s = chosen(mask, s, -jnp.inf)
    y = chosen(mask, y) * chosen(mask, jnp.broadcast_to(w, y.shape))
    has_chance = s != -jnp.inf
    without = jnp.where(y == 0, jnp.zeros_like(s), jnp.inf)
    losses = jnp.sum(y * jnp.where(has_chance, log_sum_exp(s) - chosen(has_chance, s), without), -1)
    lists = None if mask is None else jnp.any(mask, -1)
    if reduce_fn is None:
        return losses.astype(dtype)
    reduced = mean(losses, lists) if reduce_fn is jnp.mean else reduce_fn(losses, where=lists)
    return reduced.astype(dtype)
