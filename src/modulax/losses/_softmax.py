"""Cross-entropies of classes of which exactly one is right."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from .._support.arguments import (
    Axes,
    axes_of,
    broadcast,
    chosen,
    fitted,
    floating,
    mask_like,
    real,
    size_of,
    widened,
    without_axes,
)
from .._support.arithmetic import at_least_float32
from .._support.value_checks import checked


def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""The cross-entropy between labels that are probabilities and the softmax of the logits.

    $$
    -\sum_i y_i \log p_i, \qquad p_i = \frac{e^{x_i}}{\sum_j e^{x_j}}
    $$

    For one-hot labels, smoothed ones (`smooth_labels`) and those of a teacher. If every example has just one class,
    `softmax_cross_entropy_with_integer_labels` is the same in less time and memory.

    A logit of $-\infty$ is a class that cannot be. If its label is zero, it is left out as by the mask: the loss is
    finite, and the derivatives are, those by this logit and this label being zero. If its label is positive, the loss
    is infinite.

    Args:
        logits: $x$, floats of any size.
        labels: $y$, in the shape of the logits or in one that broadcasts to it. They need not add up to one.
        axis: along which the classes lie; several, or None for all of them.
        where: a mask of the classes that count, in the shape of the logits; or of the examples that count, in the shape
            of the loss. What is left out does not matter. An example without any class has a loss of zero.

    Returns:
        A value for every example, in the dtype that logits and labels have together.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    dtype, axes, x, y = _prepared("softmax_cross_entropy", logits, labels, axis, where)
    return _cross_entropy(x, y, axes).astype(dtype)


def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""The same as `softmax_cross_entropy` along the last axis, which is safe too.

    optax has two functions, of which only this one bears a logit of $-\infty$ where the label is zero. Here both do.

    Args:
        logits: floats, with the classes along the last axis.
        labels: in the shape of the logits or in one that broadcasts to it.

    Returns:
        A value for every example, in the dtype that logits and labels have together.
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
    r"""The cross-entropy and a multiple of the probability of being wrong: the PolyLoss with one changed coefficient.

    $$
    -\sum_i y_i \log p_i + \varepsilon \sum_i y_i (1 - p_i)
    $$

    The cross-entropy of the right class is $\sum_j (1 - p)^j / j$; this changes the coefficient of its first term, from
    which most of the gradient comes late in training. The authors take $\varepsilon = 2$ for the classification of
    images and $-1$ for the detection of objects, and advise to search for it.

    Args:
        logits: $x$, floats of any size.
        labels: $y$, in the shape of the logits or in one that broadcasts to it.
        epsilon: $\varepsilon$; an array must broadcast with the loss.
        axis: along which the classes lie; several, or None for all of them.
        where: a mask of the classes or examples that count, as in `softmax_cross_entropy`.

    Returns:
        A value for every example, in the dtype that logits and labels have together.

    References:
        Leng et al., [PolyLoss: A Polynomial Expansion Perspective of Classification Loss
        Functions](https://arxiv.org/abs/2204.12511), 2022
    """
    owner = "poly_loss_cross_entropy"
    dtype, axes, x, y = _prepared(owner, logits, labels, axis, where)
    (epsilon,) = real(owner, epsilon=epsilon)
    log_p, counts = _log_probabilities(x, y, *_sum_of_exp(x, axes))
    wrong = jnp.sum(y * -jnp.expm1(chosen(counts, log_p)), axes)
    wrong, epsilon = broadcast(owner, loss=wrong, epsilon=epsilon.astype(x.dtype))
    return (jnp.broadcast_to(_cross_entropy(x, y, axes), wrong.shape) + epsilon * wrong).astype(dtype)


def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""The cross-entropy of the right class: minus the logarithm of its probability.

    $$
    -\log p_y = \log \sum_j e^{x_j} - x_y
    $$

    The loss of classifiers and language models. The gradient, $p - e_y$, is computed from the logits in one pass, and
    nothing of their size is kept for it but themselves.

    Args:
        logits: $x$, floats of any size. A class whose logit is $-\infty$ has the probability zero.
        labels: $y$, integers from zero to the number of classes minus one, in the shape of the logits without `axis`.
            For any other, also for $-1$, the loss is NaN and the gradient is zero, so that nothing else is spoilt;
            under `jax.experimental.checkify` it is an error.
        axis: along which the classes lie. If there are several (None is all of them), a label is the index of its class
            among those of all these axes in this order, as if they were one.
        where: a mask of the classes that count, in the shape of the logits; or of the examples that count, in the shape
            of the labels. What is left out does not matter, and has the probability zero. An example without any class
            has a loss of zero, whatever its label.

    Returns:
        A value for every example, in the dtype of the logits.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    owner = "softmax_cross_entropy_with_integer_labels"
    (x,) = floating(owner, logits=logits)
    y = jnp.asarray(labels)
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(
            f"`{owner}(labels=...)` must hold integers, the numbers of the classes, got an array of dtype {y.dtype} "
            f"and shape {y.shape}. For probabilities or one-hot labels, `softmax_cross_entropy(logits, labels)`."
        )
    axes = axes_of(owner, axis, "logits", x)
    examples = without_axes(x, axes)
    if y.shape != examples:
        raise ValueError(
            f"`{owner}` needs `labels` of the shape {examples}, that of `logits`, {x.shape}, without its "
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
    y = y if y.dtype.itemsize >= 4 else y.astype(jnp.int32)  # the number of classes need not fit into a byte
    fits = (y >= 0) & (y < classes)
    loss = _integer_cross_entropy(x, y, axis)
    loss = jnp.where(fits, loss, jnp.full_like(loss, jnp.nan))
    if mask is not None:
        present = jnp.any(mask, axes)
        loss, fits = chosen(present, loss), fits | ~present
    message = f"`{owner}` needs `labels` from 0 to {classes - 1}, one of the {classes} classes in `logits`."
    return checked(loss.astype(dtype), fits, message)


def _prepared(
    owner: str, logits: ArrayLike, labels: ArrayLike, axis: Axes, where: ArrayLike | None
) -> tuple[Any, tuple[int, ...], Array, Array]:
    """The dtype of the loss, the axes of the classes, logits and labels without what is left out."""
    (x,) = floating(owner, logits=logits)
    (y,) = real(owner, labels=labels)
    axes = axes_of(owner, axis, "logits", x)
    if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == without_axes(x, axes) != x.shape:
        raise ValueError(
            f"`{owner}(labels=...)` must hold a number for every class, in the shape {x.shape} of `logits`, got "
            f"integers of shape {y.shape}. For the numbers of the classes, "
            "`softmax_cross_entropy_with_integer_labels(logits, labels)`."
        )
    mask = mask_like(owner, where, "logits", x, axes)
    dtype, (x, y) = widened(x, *fitted(owner, "logits", x, labels=y))
    return dtype, axes, chosen(mask, x, -jnp.inf), chosen(mask, y)


def _sum_of_exp(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The largest entry along the axes, and the sum of the exponentials of what all are below it; in at least float32.

    Both are finite where everything is -inf: the sum is one instead of zero.
    """
    dtype = at_least_float32(x.dtype)
    top = jnp.max(jax.lax.stop_gradient(x), axes, keepdims=True, initial=jnp.finfo(x.dtype).min).astype(dtype)
    total = jnp.sum(jnp.exp(x.astype(dtype) - top), axes, keepdims=True)
    return top, jnp.where(total == 0, jnp.ones_like(total), total)


def _log_probabilities(x: Array, y: Array, top: Array, total: Array) -> tuple[Array, Bool[Array, "..."]]:
    """The log-softmax of the logits; and where it counts: not where it is -inf and has no label, since 0 log 0 = 0."""
    log_p = x - top - jnp.log(total)
    return log_p, (y != 0) | (log_p != -jnp.inf)


# The derivatives of both cross-entropies are given: transposed, they are one pass over the logits, without a scatter.
# The checkpoint keeps the logits for it, in their own dtype, instead of their exponentials. What a rule computes anew
# for the value is in a compiled program the same as what it computes for the derivative.
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
    """The loss in at least float32; where the label is no class, that of another class."""
    top, total = _sum_of_exp(x, (axis,))
    # Gathered are the bits: XLA:CPU would widen a narrow array for a gather, and then keep all of it in float32.
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    own = jnp.take_along_axis(bits, jnp.expand_dims(y, axis), axis, mode="clip")
    own = jax.lax.bitcast_convert_type(own, x.dtype).astype(top.dtype)
    # The largest logit is taken from both first: where it is 1e4, a loss of 1e-4 would be lost in the rounding.
    return jnp.squeeze(jnp.log(total) - (own - top), axis)


@_integer_cross_entropy.defjvp
def _integer_cross_entropy_jvp(axis, primals, tangents):
    x, y = primals
    sums = _sum_of_exp(x, (axis,))

    # The exponentials of float32 lie where the gradient will be. Those of narrow logits would need memory of their own,
    # and are computed again instead.
    @functools.partial(jax.checkpoint, prevent_cse=x.dtype != sums[0].dtype)
    def slope(dx, x, sums):
        top, total = sums
        exps = jnp.exp(x.astype(top.dtype) - top)
        is_label = jax.lax.broadcasted_iota(y.dtype, x.shape, axis) == jnp.expand_dims(y, axis)
        return jnp.sum(jnp.where(is_label, exps - total, exps) * dx.astype(top.dtype), axis) / jnp.squeeze(total, axis)

    return _integer_cross_entropy(x, y, axis), slope(tangents[0], x, sums)
