"""Segmentation losses: overlap of the predicted and the true region of every class."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import NON_NEGATIVE, Axes, axes_of, check_one_shape, floating, promoted, real_arrays
from .._plugin.arrays import ratio
from ._arguments import check_shape, scalars
from ._shared import mean

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
    r"""Compute the soft Dice loss for segmentation; other `alpha` and `beta` give the Jaccard and Tversky losses.

    With $p$ the probabilities and $t$ the targets of a class at its pixels $i$,

    $$
    I = \sum_i p_i t_i, \qquad E = \alpha \sum_i p_i (1 - t_i) + \beta \sum_i (1 - p_i) \, t_i, \qquad
    L = \frac{E}{I + E + s} = 1 - \frac{I + s}{I + E + s}
    $$

    The loss does not depend on the size of a region, so small regions are not dominated by the background. The weights
    $\alpha$ of false positives and $\beta$ of false negatives select the coefficient: $\alpha = \beta = \tfrac12$ is
    Dice, $\alpha = \beta = 1$ is Jaccard (intersection over union), and any others are Tversky. Two empty regions are
    equal, so their loss is zero even without smoothing.

    Args:
        predictions: logits of shape `(batch, *pixels, classes)`. For a single class the probabilities are the sigmoids
            of the logits, and one of the two arrays may lack the last axis; if both do, use `binary_dice_loss`.
        targets: $t$, of the same shape: 1 where a pixel belongs to the class and 0 elsewhere, or probabilities.
        class_weights: weights of the classes, of shape `(classes,)`, by which their losses are multiplied.
        smooth: $s \ge 0$, smoothing term of the denominator; it lowers the losses of small regions.
        alpha: $\alpha \ge 0$, weight of false positives.
        beta: $\beta \ge 0$, weight of false negatives.
        apply_softmax: whether to turn logits into probabilities; False if the predictions are probabilities.
        reduction: `"mean"` or `"sum"` over the classes, or `"none"` for one loss per class.
        ignore_background: whether to leave out class 0, unless it is the only one.
        axis: axes of the pixels; by default all between the first and the last. `(0, 1, 2)` pools the images of a
            batch.

    Returns:
        One loss per image, or per image and class, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, the targets are not real, the shapes don't match, `smooth`,
            `alpha` or `beta` is negative, `reduction` is unknown, or `axis` names the axis of the classes.

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
        (class_weights,) = real_arrays(owner, class_weights=class_weights)
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
    r"""Compute the generalized Dice loss: each class is weighted by the inverse square of its pixel count in the batch.

    $$
    w_c = C \frac{v_c}{\sum_k v_k}, \qquad v_c = \frac{1}{(\sum_i t_{ic})^2 + 10^{-7}}
    $$

    For unbalanced classes. A class without any pixel in the batch gets the weight of the rarest class that is present;
    by the formula its weight would hide all others.

    Args:
        predictions: logits of shape `(batch, *pixels, classes)`.
        targets: $t$, of the same shape: 1 where a pixel belongs to the class and 0 elsewhere, or probabilities.
        smooth: smoothing term, as in `dice_loss`.
        apply_softmax: whether to turn logits into probabilities; False if the predictions are probabilities.
        ignore_background: whether to leave out class 0, unless it is the only one.

    Returns:
        The mean over the classes and the batch, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, the targets are not real, or the shapes don't match.

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
    """Compute the binary Dice loss: `dice_loss` for a single class, whose arrays need no class axis.

    Args:
        predictions: logits of shape `(batch, *pixels)` or `(batch, *pixels, 1)`.
        targets: of one of these shapes: 1 where a pixel belongs to the region and 0 elsewhere, or probabilities.
        smooth: smoothing term, as in `dice_loss`.
        apply_sigmoid: whether to turn logits into probabilities; False if the predictions are probabilities.

    Returns:
        One loss per image, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, the targets are not real, or the shapes don't match.

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
    """Return the dtype of the loss, and probabilities and targets of one shape with the classes along the last axis."""
    (predictions,) = floating(owner, predictions=predictions)
    (targets,) = real_arrays(owner, targets=targets)
    p = predictions[..., None] if predictions.ndim == targets.ndim - 1 else predictions
    t = targets[..., None] if targets.ndim == predictions.ndim - 1 else targets
    if p.shape != t.shape:
        check_one_shape(owner, predictions=predictions, targets=targets)
    if not p.ndim:
        raise ValueError(f"`{owner}` needs `predictions` with an axis of classes, got shape ().")
    dtype, (p, t) = promoted(p, t)
    if are_logits:
        p = jax.nn.sigmoid(p) if p.shape[-1] == 1 else jax.nn.softmax(p, -1)
    return dtype, p, t


def _losses(owner: str, p: Array, t: Array, smooth: ArrayLike, alpha: ArrayLike, beta: ArrayLike, axis: Axes) -> Array:
    """The loss of every class of every image."""
    smooth, alpha, beta = scalars(owner, p.dtype, NON_NEGATIVE, smooth=smooth, alpha=alpha, beta=beta)
    axes = tuple(range(1, p.ndim - 1)) if axis is None else axes_of(owner, axis, "predictions", p)
    if p.ndim - 1 in axes:
        raise ValueError(f"`{owner}(axis={axis!r})` must not name the last axis, the axis of the classes.")
    overlap = jnp.sum(p * t, axes)
    errors = alpha * (jnp.sum(p, axes) - overlap) + beta * (jnp.sum(t, axes) - overlap)
    total = overlap + errors + smooth
    size = jax.lax.stop_gradient(jnp.where(total > 0, total, jnp.ones_like(total)))
    return ratio(errors / size, total / size)  # the derivative divides by the square of a total, which would underflow


def _weighed(losses: Array, weights: Array) -> Array:
    return losses * jnp.broadcast_to(weights.astype(losses.dtype), losses.shape)


def _foreground(losses: Array, ignore_background: bool) -> Array:
    return losses[..., 1:] if ignore_background and losses.shape[-1] > 1 else losses
