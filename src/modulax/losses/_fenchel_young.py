"""Fenchel-Young losses: for predictions that are the argmax of a regularized score, such as the sparsemax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import broadcast_shape, floating, promoted, real_arrays, traced_check
from ..projections import projection_simplex
from ._shared import scores_and_labels, with_targets


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., Float[Array, "..."]]:
    r"""Make the Fenchel-Young loss of an argmax prediction from the function that computes the maximum.

    For $f(\theta) = \max_p \langle \theta, p \rangle - \Omega(p)$ the loss is

    $$
    L(\theta, y) = f(\theta) - \langle \theta, y \rangle
    $$

    It is convex in the scores $\theta$, and its gradient is $\hat p - y$, the prediction $\hat p = \nabla f(\theta)$
    minus the target. It is minimal where the prediction equals the target. It differs from the Fenchel-Young loss of
    the paper by $\Omega(y)$, which does not depend on the scores. With `jax.nn.logsumexp` it is the softmax
    cross-entropy; with a maximum smoothed by noise (see `make_perturbed_fun`) it trains through combinatorial solvers.

    Args:
        max_fun: $f$, a function of a vector of scores, and of any further arguments, that returns a scalar.

    Returns:
        A function of `scores` $\theta$ and `targets` $y$, whose vectors lie along the last axis, and of the further
        arguments of `max_fun`, which are shared by all vectors. It returns one loss per vector; the other axes
        broadcast. An infinite score with target zero contributes nothing to $\langle \theta, y \rangle$. It raises a
        ValueError if the scores do not hold floats, the shapes don't match, or `max_fun` doesn't return a scalar.

    References:
        Blondel, Martins and Niculae, [Learning with Fenchel-Young Losses](https://arxiv.org/abs/1901.02324), 2020
    """

    def fenchel_young_loss(scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any) -> Float[Array, "..."]:
        """Subtract the inner product of scores and targets from the maximum, for every vector along the last axis."""
        owner = "fenchel_young_loss"
        (scores,), (targets,) = floating(owner, scores=scores), real_arrays(owner, targets=targets)
        if not scores.ndim or scores.shape[-1:] != targets.shape[-1:]:
            raise ValueError(
                f"`{owner}` needs `scores` and `targets` whose last axes have equal length, got {scores.shape} and "
                f"{targets.shape}."
            )
        *batch, n = broadcast_shape(owner, scores=scores, targets=targets)
        dtype, (scores, targets) = promoted(scores, targets)

        def maximum(vector: Array) -> Array:
            value = jnp.asarray(max_fun(vector, *args, **kwargs))
            if value.shape != ():
                raise ValueError(
                    "`make_fenchel_young_loss(max_fun=...)` must return a scalar for a vector of scores, got an "
                    f"array of shape {value.shape}."
                )
            return value

        maxima = jax.vmap(maximum)(scores.reshape(-1, n)).reshape(scores.shape[:-1])
        scores, targets = (jnp.broadcast_to(x, (*batch, n)) for x in (scores, targets))
        scores = jnp.where(jnp.isinf(scores) & (targets == 0), jnp.zeros_like(scores), scores)
        product = jnp.sum(scores * targets, -1)
        return (jnp.broadcast_to(maxima, tuple(batch)).astype(product.dtype) - product).astype(dtype)

    return fenchel_young_loss


def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the binary sparsemax loss: zero once the logit is on the correct side of zero by at least one.

    With $x$ the logit, negated where the label is one,

    $$
    L = \begin{cases} 0 & x \le -1 \\ \tfrac14 (x + 1)^2 & -1 < x < 1 \\ x & x \ge 1 \end{cases}
    $$

    Its derivative is the predicted probability `jax.nn.sparse_sigmoid(logits)` minus the label.

    Args:
        logits: floats of any shape.
        labels: 0 and 1, or booleans, of the same shape. Under `jax.experimental.checkify` other values are reported.

    Returns:
        One loss per logit, in the dtype of the logits.

    Raises:
        ValueError: if `logits` does not hold floats, or `labels` is not real or has another shape.

    References:
        Blondel, Martins and Niculae, [Learning with Fenchel-Young Losses](https://arxiv.org/abs/1901.02324), 2020,
        section 4.4
    """
    logits, labels = with_targets("sparsemax_loss", logits=logits, labels=labels)
    ok, message = (labels == 0) | (labels == 1), "`sparsemax_loss(labels=...)` must hold zeros and ones."
    dtype, (x,) = promoted(traced_check(logits, ok, message))
    return _sparse_plus(jnp.where(labels == 0, x, -x)).astype(dtype)


@jax.custom_jvp
def _sparse_plus(x: Array) -> Array:
    return jnp.clip((x + 1) / 2, 0, 1) ** 2 + jax.nn.relu(x - 1)


@_sparse_plus.defjvp
def _sparse_plus_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _sparse_plus(x), jnp.clip((x + 1) / 2, 0, 1) * dx


def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the sparsemax loss: the counterpart of softmax cross-entropy whose probabilities can be exactly zero.

    $$
    L(\theta, k) = \max_p \left( \langle \theta, p \rangle + \tfrac12 (1 - \lVert p \rVert^2) \right) - \theta_k
    = \tfrac12 \lVert \hat p - e_k \rVert^2 + \max(\tau - \theta_k, 0)
    $$

    Here $\hat p$ is the sparsemax, the `projection_simplex` of the scores, $\tau$ its threshold and $e_k$ the one-hot
    vector of the label. Both terms are non-negative, so nothing cancels. The loss is zero once the score of the label
    exceeds all others by one. Its gradient with respect to the scores is $\hat p - e_k$.

    Args:
        scores: $\theta$, floats of shape `(..., classes)`. A class with score $-\infty$ is impossible.
        labels: $k$, class indices: integers of shape `(...)`, from 0 to `classes - 1`. For any other value the loss is
            NaN; `jax.experimental.checkify` reports it.

    Returns:
        One loss per label, in the dtype of the scores.

    Raises:
        ValueError: if `scores` does not hold floats or `labels` integers, or their shapes don't match.

    References:
        Martins and Astudillo, [From Softmax to Sparsemax](https://arxiv.org/abs/1602.02068), 2016
    """
    scores, is_label = scores_and_labels("multiclass_sparsemax_loss", scores, labels)
    dtype, (theta,) = promoted(scores)
    losses = _sparsemax_loss(theta, is_label)
    return jnp.where(jnp.any(is_label, -1), losses, jnp.nan).astype(dtype)


@jax.custom_jvp
def _sparsemax_loss(theta: Array, is_label: Array) -> Array:
    return _sparsemax_loss_of(_sparsemax(theta), theta, is_label)


@_sparsemax_loss.defjvp
def _sparsemax_loss_jvp(primals, tangents):
    (theta, is_label), (d_theta, _) = primals, tangents
    p = _sparsemax(theta)
    return _sparsemax_loss_of(p, theta, is_label), jnp.sum((p - is_label.astype(p.dtype)) * d_theta, -1)


def _sparsemax(theta: Array) -> Array:
    rows = theta.reshape(-1, theta.shape[-1])
    return jax.vmap(projection_simplex)(rows).reshape(theta.shape)


def _sparsemax_loss_of(p: Array, theta: Array, is_label: Array) -> Array:
    # The threshold is the largest score minus the largest probability.
    gap = jnp.max(theta, -1) - jnp.sum(jnp.where(is_label, theta, jnp.zeros_like(theta)), -1)
    distance = jnp.sum((p - is_label.astype(p.dtype)) ** 2, -1)
    return distance / 2 + jax.nn.relu(gap - jnp.max(p, -1))
