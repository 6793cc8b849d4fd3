"""Labels that are less sure."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, chosen, fitted, floating, mask_like, real, widened


def smooth_labels(
    labels: ArrayLike, alpha: ArrayLike, *, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""One-hot labels mixed with the uniform distribution, so that a model need not become certain.

    $$
    (1 - \alpha) \, y + \frac{\alpha}{n}
    $$

    Args:
        labels: $y$, floats.
        alpha: $\alpha$, from zero, which changes nothing, to one; often 0.1. An array must broadcast to the labels.
        axis: along which the $n$ classes lie; several, or None for all of them.
        where: a mask of the classes or examples that count, as in `softmax_cross_entropy`. Only those are counted in
            $n$; the labels of the others are zero.

    Returns:
        The new labels, in the shape and dtype of the old ones. They add up to one if those did.

    References:
        Szegedy et al., [Rethinking the Inception Architecture for Computer Vision](https://arxiv.org/abs/1512.00567),
        2015, section 7; Müller et al., [When Does Label Smoothing Help?](https://arxiv.org/abs/1906.02629), 2019
    """
    (labels,) = floating("smooth_labels", labels=labels)
    (alpha,) = real("smooth_labels", alpha=alpha)
    axes = axes_of("smooth_labels", axis, "labels", labels)
    mask = mask_like("smooth_labels", where, "labels", labels, axes)
    dtype, (y,) = widened(labels)
    (alpha,) = fitted("smooth_labels", "labels", labels, alpha=alpha.astype(y.dtype))
    counted = jnp.ones(y.shape, bool) if mask is None else mask
    n = jnp.sum(counted, axes, dtype=y.dtype, keepdims=True)
    return chosen(mask, (1 - alpha) * chosen(mask, y) + alpha / jnp.maximum(n, 1)).astype(dtype)
