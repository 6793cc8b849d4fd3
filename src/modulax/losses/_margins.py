"""Margin losses: hinge (support vector machines) and perceptron, for two classes and for many."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import promoted, traced_check
from ._shared import scores_and_labels, with_targets


def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the binary hinge loss of a support vector machine, $\max(0, 1 - y \hat y)$.

    For two classes where only the decision matters, not its probability: examples on the correct side of the margin
    have zero gradient.

    Args:
        predictor_outputs: $\hat y$, scores of any shape.
        targets: $y$, of the same shape, $-1$ or $1$. Under `jax.experimental.checkify` other values are reported.

    Returns:
        One loss per score, in the dtype that outputs and targets promote to.

    Raises:
        ValueError: if the scores do not hold floats, or the targets are not real or have another shape.

    References:
        Cortes and Vapnik, [Support-Vector Networks](https://doi.org/10.1007/BF00994018), 1995
    """
    return _binary("hinge_loss", predictor_outputs, targets, 1)


def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the binary perceptron loss, $\max(0, -y \hat y)$: the hinge loss without a margin.

    Args:
        predictor_outputs: $\hat y$, scores of any shape.
        targets: $y$, of the same shape, $-1$ or $1$. Under `jax.experimental.checkify` other values are reported.

    Returns:
        One loss per score, in the dtype that outputs and targets promote to.

    Raises:
        ValueError: if the scores do not hold floats, or the targets are not real or have another shape.

    References:
        Rosenblatt, [The Perceptron](https://doi.org/10.1037/h0042519), 1958
    """
    return _binary("perceptron_loss", predictor_outputs, targets, 0)


def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the multiclass hinge loss: the score of the correct class should exceed every other by at least one.

    $$
    \max\bigl(0, \max_{k \ne y} s_k + 1 - s_y\bigr)
    $$

    Args:
        scores: $s$, floats of shape `(..., classes)`.
        labels: $y$, the correct class indices: integers of shape `(...)`. For any other value the loss is NaN;
            `jax.experimental.checkify` reports it.

    Returns:
        One loss per label, in the dtype of the scores.

    Raises:
        ValueError: if `scores` does not hold floats or `labels` integers, or their shapes don't match.

    References:
        Crammer and Singer, [On the Algorithmic Implementation of Multiclass Kernel-based Vector
        Machines](https://www.jmlr.org/papers/v2/crammer01a.html), 2001
    """
    return _multiclass("multiclass_hinge_loss", scores, labels, 1)


def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the multiclass perceptron loss: the largest score minus the score of the correct class.

    $$
    \max_k s_k - s_y
    $$

    Args:
        scores: $s$, floats of shape `(..., classes)`.
        labels: $y$, the correct class indices: integers of shape `(...)`. For any other value the loss is NaN;
            `jax.experimental.checkify` reports it.

    Returns:
        One loss per label, in the dtype of the scores.

    Raises:
        ValueError: if `scores` does not hold floats or `labels` integers, or their shapes don't match.

    References:
        Collins, [Discriminative Training Methods for Hidden Markov Models: Theory and Experiments with Perceptron
        Algorithms](https://aclanthology.org/W02-1001/), 2002
    """
    return _multiclass("multiclass_perceptron_loss", scores, labels, 0)


def _binary(owner: str, predictor_outputs: ArrayLike, targets: ArrayLike, margin: int) -> Array:
    predictor_outputs, targets = with_targets(owner, predictor_outputs=predictor_outputs, targets=targets)
    ok, message = jnp.abs(targets) == 1, f"`{owner}(targets=...)` must hold -1 and 1."
    dtype, (predictor_outputs, targets) = promoted(traced_check(predictor_outputs, ok, message), targets)
    return jnp.maximum(margin - predictor_outputs * targets, 0).astype(dtype)


def _multiclass(owner: str, scores: ArrayLike, labels: ArrayLike, margin: int) -> Array:
    scores, is_right = scores_and_labels(owner, scores, labels)
    dtype, (scores,) = promoted(scores)
    right = jnp.sum(scores, -1, where=is_right)
    largest = jnp.max(jnp.where(is_right, scores, scores + margin), -1)
    losses = jnp.where(right == jnp.inf, jnp.zeros_like(right), largest - right)  # avoids inf - inf
    return jnp.where(jnp.any(is_right, -1), losses, jnp.nan).astype(dtype)
