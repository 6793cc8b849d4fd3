"""Losses of scores that must win by a margin: that of a support vector machine, and that of the perceptron."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import check_one_shape, floating, real, widened
from .._support.value_checks import checked
from ._pieces import scores_and_labels


def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Float[Array, "..."]:
    r"""How much a score lacks to be on its side of zero by at least one, $\max(0, 1 - y \hat y)$.

    For two classes, if only the decision counts and not its probability: examples that are right by more than the
    margin have no gradient. It is the loss of the support vector machine.

    Args:
        predictor_outputs: $\hat y$, scores of any shape.
        targets: $y$, of the same shape, $-1$ or $1$. Under `jax.experimental.checkify` other values are reported.

    Returns:
        A value for every score, in the dtype of the scores.

    References:
        Cortes and Vapnik, [Support-Vector Networks](https://doi.org/10.1007/BF00994018), 1995
    """
    return _binary("hinge_loss", predictor_outputs, targets, 1)


def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> Float[Array, "..."]:
    r"""How far a score is on the wrong side of zero, $\max(0, -y \hat y)$: `hinge_loss` without a margin.

    Args:
        predictor_outputs: $\hat y$, scores of any shape.
        targets: $y$, of the same shape, $-1$ or $1$. Under `jax.experimental.checkify` other values are reported.

    Returns:
        A value for every score, in the dtype of the scores.

    References:
        Rosenblatt, [The Perceptron](https://doi.org/10.1037/h0042519), 1958
    """
    return _binary("perceptron_loss", predictor_outputs, targets, 0)


def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""How much the score of the right class lacks to be above every other by at least one.

    $$
    \max\bigl(0, \max_{k \ne y} s_k + 1 - s_y\bigr)
    $$

    Args:
        scores: $s$, floats, a score for every class along the last axis.
        labels: $y$, the numbers of the right classes: integers, of the shape of the scores without its last axis. For
            one that is no class the loss is NaN, and reported under `jax.experimental.checkify`.

    Returns:
        A value for every label, in the dtype of the scores.

    References:
        Crammer and Singer, [On the Algorithmic Implementation of Multiclass Kernel-based Vector
        Machines](https://www.jmlr.org/papers/v2/crammer01a.html), 2001
    """
    return _multiclass("multiclass_hinge_loss", scores, labels, 1)


def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""How far the score of the right class is below the largest one, $\max_k s_k - s_y$.

    Args:
        scores: $s$, floats, a score for every class along the last axis.
        labels: $y$, the numbers of the right classes: integers, of the shape of the scores without its last axis. For
            one that is no class the loss is NaN, and reported under `jax.experimental.checkify`.

    Returns:
        A value for every label, in the dtype of the scores.

    References:
        Collins, [Discriminative Training Methods for Hidden Markov Models: Theory and Experiments with Perceptron
        Algorithms](https://aclanthology.org/W02-1001/), 2002
    """
    return _multiclass("multiclass_perceptron_loss", scores, labels, 0)


def _binary(owner: str, predictor_outputs: ArrayLike, targets: ArrayLike, margin: int) -> Array:
    (predictor_outputs,) = floating(owner, predictor_outputs=predictor_outputs)
    (targets,) = real(owner, targets=targets)
    check_one_shape(owner, predictor_outputs=predictor_outputs, targets=targets)
    ok, message = jnp.abs(targets) == 1, f"`{owner}(targets=...)` must hold -1 and 1."
    dtype, (predictor_outputs, targets) = widened(checked(predictor_outputs, ok, message), targets)
    return jnp.maximum(margin - predictor_outputs * targets, 0).astype(dtype)


def _multiclass(owner: str, scores: ArrayLike, labels: ArrayLike, margin: int) -> Array:
    scores, is_right = scores_and_labels(owner, scores, labels)
    dtype, (scores,) = widened(scores)
    right = jnp.sum(scores, -1, where=is_right)
    largest = jnp.max(jnp.where(is_right, scores, scores + margin), -1)
    losses = jnp.where(right == jnp.inf, jnp.zeros_like(right), largest - right)  # not infinity minus infinity
    return jnp.where(jnp.any(is_right, -1), losses, jnp.nan).astype(dtype)
