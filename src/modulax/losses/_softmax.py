r"""Softmax cross-entropies: classification with mutually exclusive classes.

How the pieces meet:

* `_prepared` checks the arguments of the losses with a label per class, and turns masked classes into logits of
  $-\infty$ with label zero. The loss with integer labels does the same by itself.
* `_sum_of_exp` is the only reduction over the classes: the largest logit, and the sum of the exponentials relative to
  it. Everything else follows from these two and the logits.
* `_cross_entropy` and `_integer_cross_entropy` are the two losses, each with a derivative rule of its own. A logit of
  $-\infty$, masked or not, contributes zero to value and derivatives unless its label is positive.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from .._plugin.arguments import Axes, axes_of, broadcast, floating, promoted, real_arrays, traced_check
from ..numerics import at_least_float32
from ._arguments import chosen, fitted
from ._shared import mask_like, size_of, without_axes


def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Compute the softmax cross-entropy of logits and label probabilities.

    $$
    -\sum_i y_i \log p_i, \qquad p_i = \frac{e^{x_i}}{\sum_j e^{x_j}}
    $$

    For one-hot labels, smoothed labels (`smooth_labels`) and soft targets of a teacher. If every example has exactly
    one class, `softmax_cross_entropy_with_integer_labels` takes less time and memory.

    A logit of $-\infty$ is an impossible class. If its label is zero it is left out, as if masked: the loss and its
    derivatives are finite, and the derivatives with respect to this logit and label are zero. If its label is positive,
    the loss is infinite.

    Args:
        logits: $x$, unnormalized log-probabilities, floats of any size.
        labels: $y$, class probabilities, in a shape that broadcasts to that of the logits. They need not sum to one.
        axis: axis or axes of the classes; None means all axes.
        where: mask of the classes to include, in the shape of the logits; or of the examples to include, in the shape
            of the loss. Masked values are ignored. An example without any class has loss zero.

    Returns:
        One loss per example, in the dtype that logits and labels promote to.

    Raises:
        ValueError: if the logits do not hold floats, the labels are not real, hold class indices or don't broadcast to
            the logits, `axis` is out of bounds, or the mask doesn't fit.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    dtype, axes, x, y = _prepared("softmax_cross_entropy", logits, labels, axis, where)
    return _cross_entropy(x, y, axes).astype(dtype)


def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the softmax cross-entropy along the last axis; the same as `softmax_cross_entropy`.

    optax has two functions, because there only this one handles a logit of $-\infty$ with label zero. Here both do.

    Args:
        logits: floats, with the classes along the last axis.
        labels: class probabilities, in a shape that broadcasts to that of the logits.

    Returns:
        One loss per example, in the dtype that logits and labels promote to.

    Raises:
        ValueError: if the logits do not hold floats, or the labels are not real, hold class indices or don't broadcast
            to the logits.
    """
    dtype, axes, x, y = _prepared("safe_softmax_cross_entropy", logits, labels, -1, None)
    return _cross_entropy(x, y, axes).astype(dtype)


def poly_loss_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    epsilon: ArrayLike = 2.0,
    axis: Axes = -1,
    where: ArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""Compute PolyLoss: softmax cross-entropy plus a multiple of the probability of the wrong classes (Poly-1).

    $$
    -\sum_i y_i \log p_i + \varepsilon \sum_i y_i (1 - p_i)
    $$

    The cross-entropy of the correct class is the series $\sum_j (1 - p)^j / j$. PolyLoss changes the coefficient of its
    first term, which dominates the gradient late in training. The authors use $\varepsilon = 2$ for image
    classification and $-1$ for object detection, and recommend tuning it.

    Args:
        logits: $x$, unnormalized log-probabilities, floats of any size.
        labels: $y$, class probabilities, in a shape that broadcasts to that of the logits.
        epsilon: $\varepsilon$, coefficient of the additional term; an array must broadcast with the loss.
        axis: axis or axes of the classes; None means all axes.
        where: mask of the classes or examples to include, as in `softmax_cross_entropy`.

    Returns:
        One loss per example, in the dtype that logits and labels promote to.

    Raises:
        ValueError: under the same conditions as `softmax_cross_entropy`, or if `epsilon` is not real or doesn't
            broadcast with the loss.

    References:
        Leng et al., [PolyLoss: A Polynomial Expansion Perspective of Classification Loss
        Functions](https://arxiv.org/abs/2204.12511), 2022
    """
    owner = "poly_loss_cross_entropy"
    dtype, axes, x, y = _prepared(owner, logits, labels, axis, where)
    (epsilon,) = real_arrays(owner, epsilon=epsilon)
    log_p, counts = _log_probabilities(x, y, *_sum_of_exp(x, axes))
    wrong = jnp.sum(y * -jnp.expm1(chosen(counts, log_p)), axes)
    wrong, epsilon = broadcast(owner, loss=wrong, epsilon=epsilon.astype(x.dtype))
    return (jnp.broadcast_to(_cross_entropy(x, y, axes), wrong.shape) + epsilon * wrong).astype(dtype)


def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Compute the softmax cross-entropy of logits and integer class labels (sparse categorical cross-entropy).

    $$
    -\log p_y = \log \sum_j e^{x_j} - x_y
    $$

    The standard loss of classifiers and language models. The gradient, $p - e_y$, is computed from the logits in one
    pass; no other array of their size is stored for it.

    Args:
        logits: $x$, unnormalized log-probabilities, floats of any size. A class with logit $-\infty$ has probability
            zero.
        labels: $y$, class indices: integers from 0 to the number of classes minus one, in the shape of the logits
            without `axis`. Any other value, such as $-1$, makes the loss of its example NaN with zero gradient, so that
            other examples are unaffected; under `jax.experimental.checkify` it is an error.
        axis: axis or axes of the classes; None means all axes. With several axes, a label indexes their classes as if
            these axes were flattened into one, in the order given.
        where: mask of the classes to include, in the shape of the logits; or of the examples to include, in the shape
            of the labels. Masked values are ignored, and masked classes have probability zero. An example without any
            class has loss zero, whatever its label.

    Returns:
        One loss per example, in the dtype of the logits.

    Raises:
        ValueError: if the logits do not hold floats or the labels integers, the shapes don't match, `axis` is out of
            bounds, or the mask doesn't fit.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    owner = "softmax_cross_entropy_with_integer_labels"
    (x,) = floating(owner, logits=logits)
    y = jnp.asarray(labels)
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(
            f"`{owner}(labels=...)` must hold integers, the class indices, got an array of dtype {y.dtype} "
            f"and shape {y.shape}. For probabilities or one-hot labels, use `softmax_cross_entropy(logits, labels)`."
        )
    axes = axes_of(owner, axis, "logits", x)
    examples = without_axes(x, axes)
    if y.shape != examples:
        raise ValueError(
            f"`{owner}` needs `labels` of shape {examples}, the shape of `logits`, {x.shape}, without its "
            f"{'axis' if len(axes) == 1 else 'axes'} of classes, got {y.shape}."
        )
    mask = mask_like(owner, where, "logits", x, axes)
    dtype, x = x.dtype, chosen(mask, x, -jnp.inf)
    if len(axes) == 1:
        (axis,) = axes
    else:
        axis = len(examples)
        x = jnp.moveaxis(x, axes, range(-len(axes), 0)).reshape(*examples, size_of(x.shape, axes))
    classes = x.shape[axis]
    y = y if y.dtype.itemsize >= 4 else y.astype(jnp.int32)  # the class indices may not fit into a narrower dtype
    fits = (y >= 0) & (y < classes)
    loss = _integer_cross_entropy(x, y, axis)
    loss = jnp.where(fits, loss, jnp.full_like(loss, jnp.nan))
    if mask is not None:
        present = jnp.any(mask, axes)
        loss, fits = chosen(present, loss), fits | ~present
    message = f"`{owner}` needs `labels` from 0 to {classes - 1}, one of the {classes} classes in `logits`."
    return traced_check(loss.astype(dtype), fits, message)


def _prepared(
    owner: str, logits: ArrayLike, labels: ArrayLike, axis: Axes, where: ArrayLike | None
) -> tuple[Any, tuple[int, ...], Array, Array]:
    """Check the arguments; return the dtype of the loss, the axes of the classes, and the masked logits and labels."""
    (x,) = floating(owner, logits=logits)
    (y,) = real_arrays(owner, labels=labels)
    axes = axes_of(owner, axis, "logits", x)
    if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == without_axes(x, axes) != x.shape:
        raise ValueError(
            f"`{owner}(labels=...)` must hold one value per class, in the shape {x.shape} of `logits`, got "
            f"integers of shape {y.shape}. For class indices, use "
            "`softmax_cross_entropy_with_integer_labels(logits, labels)`."
        )
    mask = mask_like(owner, where, "logits", x, axes)
    dtype, (x, y) = promoted(x, *fitted(owner, "logits", x, labels=y))
    return dtype, axes, chosen(mask, x, -jnp.inf), chosen(mask, y)


def _sum_of_exp(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    r"""Return the largest logit along the axes and the sum of exponentials relative to it, in at least float32.

    Both are finite even if all logits are $-\infty$; the sum is then one instead of zero.
    """
    dtype = at_least_float32(x.dtype)
    top = jnp.max(jax.lax.stop_gradient(x), axes, keepdims=True, initial=jnp.finfo(x.dtype).min).astype(dtype)
    total = jnp.sum(jnp.exp(x.astype(dtype) - top), axes, keepdims=True)
    return top, jnp.where(total == 0, jnp.ones_like(total), total)


def _log_probabilities(x: Array, y: Array, top: Array, total: Array) -> tuple[Array, Bool[Array, "..."]]:
    r"""Return the log-softmax, and where it counts: not at $-\infty$ with label zero, since 0 log 0 is 0."""
    log_p = x - top - jnp.log(total)
    return log_p, (y != 0) | (log_p != -jnp.inf)


# Both cross-entropies have derivative rules, whose transposes are a single pass over the logits, without a scatter.
# `jax.checkpoint` makes them store the logits in their own dtype instead of the exponentials in float32. A rule appears
# to compute the value twice; common subexpression elimination merges the two in the compiled program.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _cross_entropy(x: Float[Array, "..."], y: Float[Array, "..."], axes: tuple[int, ...]) -> Float[Array, "..."]:
    log_p, counts = _log_probabilities(x, y, *_sum_of_exp(x, axes))
    return -jnp.sum(chosen(counts, y * log_p), axes)


@_cross_entropy.defjvp
def _cross_entropy_jvp(axes, primals, tangents):
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def slope(dx, dy, x, y, sums):
        log_p, counts = _log_probabilities(x, y, *sums)
        by_label = jnp.sum(chosen(counts, log_p) * dy, axes)
        top, total = sums
        mean = jnp.sum(jnp.exp(x - top) * dx, axes) / jnp.squeeze(total, axes)
        return jnp.sum(y, axes) * mean - jnp.sum(y * dx, axes) - by_label

    return _cross_entropy(*primals, axes), slope(*tangents, *primals, _sum_of_exp(primals[0], axes))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _integer_cross_entropy(x: Float[Array, "..."], y: Integer[Array, "..."], axis: int) -> Float[Array, "..."]:
    """The loss in at least float32; an invalid label is clipped to a class."""
    top, total = _sum_of_exp(x, (axis,))
    # Gather the bits as integers: XLA:CPU would convert a bfloat16 array to float32 for the gather, in full.
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    own = jnp.take_along_axis(bits, jnp.expand_dims(y, axis), axis, mode="clip")
    own = jax.lax.bitcast_convert_type(own, x.dtype).astype(top.dtype)
    # Subtract the largest logit from both terms first: for logits of 1e4, a loss of 1e-4 would be lost to rounding.
    return jnp.squeeze(jnp.log(total) - (own - top), axis)


@_integer_cross_entropy.defjvp
def _integer_cross_entropy_jvp(axis, primals, tangents):
    x, y = primals
    sums = _sum_of_exp(x, (axis,))

    # For float32 logits, the exponentials may be shared with the forward pass: they reuse the memory of the gradient.
    # For narrower logits they would need memory of their own, so `prevent_cse` makes the backward pass recompute them.
    @functools.partial(jax.checkpoint, prevent_cse=x.dtype != sums[0].dtype)
    def slope(dx, x, sums):
        top, total = sums
        exps = jnp.exp(x.astype(top.dtype) - top)
        is_label = jax.lax.broadcasted_iota(y.dtype, x.shape, axis) == jnp.expand_dims(y, axis)
        return jnp.sum(jnp.where(is_label, exps - total, exps) * dx.astype(top.dtype), axis) / jnp.squeeze(total, axis)

    return _integer_cross_entropy(x, y, axis), slope(tangents[0], x, sums)
