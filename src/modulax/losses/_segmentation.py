"""Losses of masks: how much the predicted and the true region of every class overlap."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, check_one_shape, check_shape, floating, numbers, real, widened
from .._support.arithmetic import ratio
from ._pieces import mean

_REDUCTIONS = {"mean": lambda x: jnp.mean(x, -1), "sum": lambda x: jnp.sum(x, -1), "none": lambda x: x}


def dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    class_weights: ArrayLike | None = None,
    smooth: ArrayLike = 1.0,
    alpha: ArrayLike = 0.5,
    beta: ArrayLike = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: Axes = None,
) -> Float[Array, "..."]:
    r"""One minus the overlap of the predicted and the true region of every class, for segmentation.

    With $p$ the probabilities and $t$ the targets of a class at its pixels $i$,

    $$
    I = \sum_i p_i t_i, \qquad E = \alpha \sum_i p_i (1 - t_i) + \beta \sum_i (1 - p_i) \, t_i, \qquad
    L = \frac{E}{I + E + s} = 1 - \frac{I + s}{I + E + s}
    $$

    The size of a region does not matter, so that small ones are not lost among the background. $\alpha$ weighs what is
    taken for the class and is not, $\beta$ what is missed: one half each is the coefficient of Dice, one each that of
    Jaccard, and others that of Tversky. Two empty regions are one, with or without smoothing: $0 / 0$ is zero here.

    Args:
        predictions: logits of shape `(batch, *pixels, classes)`. If there is one class, the probabilities are the
            sigmoids of the logits, and either of the two arrays may lack the last axis; if both do, there is
            `binary_dice_loss`.
        targets: $t$, of the same shape: one where a pixel belongs to the class, else zero; or probabilities.
        class_weights: what the loss of every class is multiplied by, of shape `(classes,)`.
        smooth: $s$, at least zero; it lowers the losses of small regions.
        alpha: $\alpha$, the weight of false positives.
        beta: $\beta$, the weight of false negatives.
        apply_softmax: False if the predictions are probabilities already.
        reduction: `"mean"` or `"sum"` over the classes, or `"none"`, which leaves one value for each.
        ignore_background: whether to leave out class 0, unless it is the only one.
        axis: the axes of the pixels, where they are not all between the first and the last one. `(0, 1, 2)` takes all
            images of a batch together.

    Returns:
        A value for every image, or for each of its classes, in the dtype of the predictions.

    References:
        Milletari et al., [V-Net](https://arxiv.org/abs/1606.04797), 2016

        Salehi et al., [Tversky Loss Function for Image Segmentation Using 3D Fully Convolutional Deep
        Networks](https://arxiv.org/abs/1706.05721), 2017
    """
    owner = "dice_loss"
    if reduction not in _REDUCTIONS:
        raise ValueError(f"`{owner}(reduction={reduction!r})` must be one of {', '.join(map(repr, _REDUCTIONS))}.")
    dtype, p, t = _regions(owner, predictions, targets, apply_softmax)
    losses = _losses(owner, p, t, smooth, alpha, beta, axis)
    if class_weights is not None:
        (class_weights,) = real(owner, class_weights=class_weights)
        check_shape(owner, "class_weights", class_weights, p.shape[-1:], "one for every class")
        losses = _weighed(losses, class_weights)
    return _REDUCTIONS[reduction](_foreground(losses, ignore_background)).astype(dtype)


def multiclass_generalized_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: ArrayLike = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> Float[Array, ""]:
    r"""`dice_loss` in which rare classes weigh more: by the inverse square of their numbers of pixels in the batch.

    $$
    w_c = C \frac{v_c}{\sum_k v_k}, \qquad v_c = \frac{1}{(\sum_i t_{ic})^2 + 10^{-7}}
    $$

    A class of which the batch has no pixel weighs as much as the rarest one that it has, so that it does not hide them.

    Args:
        predictions: logits of shape `(batch, *pixels, classes)`.
        targets: $t$, of the same shape: one where a pixel belongs to the class, else zero; or probabilities.
        smooth: as in `dice_loss`.
        apply_softmax: False if the predictions are probabilities already.
        ignore_background: whether to leave out class 0, unless it is the only one.

    Returns:
        The mean over the classes and the batch, in the dtype of the predictions.

    References:
        Sudre et al., [Generalised Dice Overlap as a Deep Learning Loss Function for Highly Unbalanced
        Segmentations](https://arxiv.org/abs/1707.03237), 2017
    """
    owner = "multiclass_generalized_dice_loss"
    dtype, p, t = _regions(owner, predictions, targets, apply_softmax)
    losses = _losses(owner, p, t, smooth, 0.5, 0.5, None)
    sizes = jnp.sum(t, tuple(range(t.ndim - 1)))
    weights = 1 / (sizes**2 + 1e-7)
    is_there = sizes != 0
    largest = jnp.max(weights, where=is_there, initial=0)
    weights = jnp.where(is_there, weights, jnp.where(largest > 0, largest, jnp.ones_like(largest)))
    weights = weights / jnp.sum(weights) * len(weights)
    return mean(_foreground(_weighed(losses, weights), ignore_background)).astype(dtype)


def binary_dice_loss(
    predictions: ArrayLike, targets: ArrayLike, *, smooth: ArrayLike = 1.0, apply_sigmoid: bool = True
) -> Float[Array, "..."]:
    r"""`dice_loss` of one region, whose arrays need no axis of classes.

    Args:
        predictions: logits of shape `(batch, *pixels)` or `(batch, *pixels, 1)`.
        targets: of one of these shapes: one where a pixel belongs to the region, else zero; or probabilities.
        smooth: as in `dice_loss`.
        apply_sigmoid: False if the predictions are probabilities already.

    Returns:
        A value for every image, in the dtype of the predictions.

    References:
        Milletari et al., [V-Net](https://arxiv.org/abs/1606.04797), 2016
    """
    owner = "binary_dice_loss"
    predictions, targets = jnp.asarray(predictions), jnp.asarray(targets)
    if predictions.ndim == targets.ndim and predictions.shape[-1:] != (1,):
        check_one_shape(owner, predictions=predictions, targets=targets)
        predictions, targets = predictions[..., None], targets[..., None]
    dtype, p, t = _regions(owner, predictions, targets, apply_sigmoid)
    return jnp.mean(_losses(owner, p, t, smooth, 0.5, 0.5, None), -1).astype(dtype)


def _regions(owner: str, predictions: ArrayLike, targets: ArrayLike, are_logits: bool) -> tuple[Any, Array, Array]:
    """The dtype of the loss, and the probabilities and targets of one shape, whose last axis is that of the classes."""
    (predictions,) = floating(owner, predictions=predictions)
    (targets,) = real(owner, targets=targets)
    p = predictions[..., None] if predictions.ndim == targets.ndim - 1 else predictions
    t = targets[..., None] if targets.ndim == predictions.ndim - 1 else targets
    if p.shape != t.shape:
        check_one_shape(owner, predictions=predictions, targets=targets)
    if not p.ndim:
        raise ValueError(f"`{owner}` needs `predictions` with an axis of classes, got the shape ().")
    dtype, (p, t) = widened(p, t)
    if are_logits:
        p = jax.nn.sigmoid(p) if p.shape[-1] == 1 else jax.nn.softmax(p, -1)
    return dtype, p, t


def _losses(owner: str, p: Array, t: Array, smooth: ArrayLike, alpha: ArrayLike, beta: ArrayLike, axis: Axes) -> Array:
    """The loss of every class of every image."""
    smooth, alpha, beta = numbers(owner, p.dtype, smooth=smooth, alpha=alpha, beta=beta)
    axes = tuple(range(1, p.ndim - 1)) if axis is None else axes_of(owner, axis, "predictions", p)
    if p.ndim - 1 in axes:
        raise ValueError(f"`{owner}(axis={axis!r})` must not name the last axis: it is that of the classes.")
    overlap = jnp.sum(p * t, axes)
    errors = alpha * (jnp.sum(p, axes) - overlap) + beta * (jnp.sum(t, axes) - overlap)
    return ratio(errors, overlap + errors + smooth)


def _weighed(losses: Array, weights: Array) -> Array:
    return losses * jnp.broadcast_to(weights.astype(losses.dtype), losses.shape)


def _foreground(losses: Array, ignore_background: bool) -> Array:
    return losses[..., 1:] if ignore_background and losses.shape[-1] > 1 else losses
