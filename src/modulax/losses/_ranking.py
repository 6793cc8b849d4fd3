"""Losses of lists whose items are to be put in order."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import broadcast_shape, check_one_shape, chosen, floating, mask_like, real, widened
from ._pieces import log_sum_exp, mean


def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., Any] | None = jnp.mean,
) -> Float[Array, "..."]:
    r"""The cross-entropy between the relevance of the items of a list and the softmax of their scores.

    $$
    L(s, y) = -\sum_i w_i \, y_i \log \frac{e^{s_i}}{\sum_j e^{s_j}}
    $$

    For learning to rank: it compares the items of a list with each other. With one relevant item, it is the
    cross-entropy of choosing it.

    Args:
        logits: $s$, floats, the scores of the items of a list along the last axis. One of minus infinity has no chance:
            it adds nothing if its label is zero, and makes the loss infinite if it is positive.
        labels: $y$, how relevant the items are, of the same shape.
        where: a mask of the items that are there, for lists of several lengths; what the others hold does not matter.
        weights: $w$, what the items count, in a shape that broadcasts to that of the logits; one if there are none.
        reduce_fn: makes one value of those of all lists. It is called with them and with `where=`, a mask of the lists
            that have an item, or None; the mean of no list is zero. None leaves a value for every list.

    Returns:
        What `reduce_fn` makes of the losses, in the dtype of the logits. A list without an item has a loss of zero.

    References:
        Cao et al., [Learning to Rank: From Pairwise Approach to Listwise
        Approach](https://doi.org/10.1145/1273496.1273513), 2007

        Bruch et al., [An Analysis of the Softmax Cross Entropy Loss for Learning-to-Rank with Binary
        Relevance](https://doi.org/10.1145/3341981.3344221), 2019
    """
    owner = "ranking_softmax_loss"
    (logits,) = floating(owner, logits=logits)
    labels, weights = real(owner, labels=labels, weights=1 if weights is None else weights)
    check_one_shape(owner, logits=logits, labels=labels)
    if not logits.ndim:
        raise ValueError(f"`{owner}` needs `logits` with an axis of items, got the shape ().")
    if broadcast_shape(owner, logits=logits, weights=weights) != logits.shape:
        raise ValueError(f"`{owner}` needs `weights` of the shape of `logits`, {logits.shape}, got {weights.shape}.")
    mask = mask_like(owner, where, "logits", logits)
    dtype, (s, y, w) = widened(logits, labels, weights)
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
