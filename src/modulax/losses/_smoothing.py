"""Label smoothing."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import FRACTION, Axes, axes_of, floating, promoted
from ._arguments import chosen
from ._shared import mask_like, number_like


def smooth_labels(
    labels: ArrayLike, alpha: ArrayLike, *, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Smooth one-hot labels: mix them with the uniform distribution, to discourage overconfident predictions.

    $$
    (1 - \alpha) \, y + \frac{\alpha}{n}
    $$

    Args:
        labels: $y$, floats.
        alpha: $\alpha \in [0, 1]$, smoothing strength; 0 changes nothing, 0.1 is common. An array must broadcast to the
            labels.
        axis: axis or axes of the $n$ classes; None means all axes.
        where: mask of the classes or examples to include, as in `softmax_cross_entropy`. $n$ counts only these; the
            others get label zero.

    Returns:
        The smoothed labels, in the shape and dtype of the old ones. They sum to one if the old ones did.

    Raises:
        ValueError: if the labels do not hold floats, `alpha` is not in [0, 1] or doesn't broadcast, `axis` is out of
            bounds, or the mask doesn't fit.

    References:
        Szegedy et al., [Rethinking the Inception Architecture for Computer Vision](https://arxiv.org/abs/1512.00567),
        2015, section 7; Müller et al., [When Does Label Smoothing Help?](https://arxiv.org/abs/1906.02629), 2019
    """
    (labels,) = floating("smooth_labels", labels=labels)
    axes = axes_of("smooth_labels", axis, "labels", labels)
    mask = mask_like("smooth_labels", where, "labels", labels, axes)
    dtype, (y,) = promoted(labels)
    alpha = number_like("smooth_labels", "labels", y, FRACTION, alpha=alpha)
    counted = jnp.ones(y.shape, bool) if mask is None else mask
    n = jnp.sum(counted, axes, dtype=y.dtype, keepdims=True)
    return chosen(mask, (1 - alpha) * chosen(mask, y) + alpha / jnp.maximum(n, 1)).astype(dtype)
