"""Binary cross-entropies: each class may be right or wrong independently of the others."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import FRACTION, NON_NEGATIVE, floating, promoted, real_arrays
from ._arguments import chosen, fitted
from ._shared import number_like


def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""Compute the binary cross-entropy of logits (BCE with logits), for binary or multi-label classification.

    $$
    -y \log \sigma(x) - (1 - y) \log \sigma(-x)
    $$

    Every logit is a separate decision. For mutually exclusive classes use `softmax_cross_entropy`.

    Args:
        logits: $x$, floats of any size. An infinite logit is a certain prediction: its loss is zero if the label
            agrees, and infinite otherwise.
        labels: $y$, 0, 1 or a probability in between, in a shape that broadcasts to that of the logits. Booleans and
            integers are accepted.

    Returns:
        One loss per logit, in the dtype that logits and labels promote to.

    Raises:
        ValueError: if the logits do not hold floats, or the labels are not real or don't broadcast to the logits.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    dtype, x, y, differs = _prepared("sigmoid_binary_cross_entropy", logits, labels)
    return chosen(differs, _binary_cross_entropy(x, y)).astype(dtype)


def sigmoid_focal_loss(
    logits: ArrayLike, labels: ArrayLike, *, alpha: ArrayLike | None = None, gamma: ArrayLike = 2.0
) -> Float[Array, "..."]:
    r"""Compute the focal loss: binary cross-entropy that down-weights well-classified examples, for imbalanced classes.

    $$
    \alpha_t \, (1 - p_t)^\gamma \, \bigl(-y \log \sigma(x) - (1 - y) \log \sigma(-x)\bigr), \qquad
    \begin{aligned}
    p_t &= y \, \sigma(x) + (1 - y) \, \sigma(-x) \\
    \alpha_t &= y \, \alpha + (1 - y) (1 - \alpha)
    \end{aligned}
    $$

    With $\gamma = 0$ and no $\alpha$ it is `sigmoid_binary_cross_entropy`. The factor $(1 - p_t)^\gamma$ is computed
    from the logarithm of $1 - p_t$, so that value and derivatives are accurate for large logits and for any $\gamma \ge
    0$.

    Args:
        logits: $x$, floats of any size.
        labels: $y$, 0, 1 or a probability in between, in a shape that broadcasts to that of the logits. Booleans and
            integers are accepted.
        alpha: $\alpha \in [0, 1]$, weight of the positive class; the negative class gets $1 - \alpha$. None weights
            both by 1.
        gamma: $\gamma \ge 0$, focusing parameter: the larger it is, the less well-classified examples count.

    Returns:
        One loss per logit, in the dtype that logits and labels promote to.

    Raises:
        ValueError: if the logits do not hold floats, or another argument is not real, is out of its range or doesn't
            broadcast to the logits.

    References:
        Lin et al., [Focal Loss for Dense Object Detection](https://arxiv.org/abs/1708.02002), 2017
    """
    owner = "sigmoid_focal_loss"
    dtype, x, y, differs = _prepared(owner, logits, labels)
    gamma = number_like(owner, "logits", x, NON_NEGATIVE, gamma=gamma)
    loss = jnp.exp(gamma * _log_wrong(x, y)) * _binary_cross_entropy(x, y)
    if alpha is not None:
        alpha = number_like(owner, "logits", x, FRACTION, alpha=alpha)
        loss = (alpha * y + (1 - alpha) * (1 - y)) * loss
    return chosen(differs, loss).astype(dtype)


def _prepared(owner: str, logits: ArrayLike, labels: ArrayLike) -> tuple[Any, Array, Array, Array]:
    """The dtype of the result, logits, labels, and where the loss isn't zero: the other logits are zero."""
    (x,) = floating(owner, logits=logits)
    (y,) = real_arrays(owner, labels=labels)
    dtype, (x, y) = promoted(x, *fitted(owner, "logits", x, labels=y))
    # Where an infinite logit agrees with its label, the loss and its derivatives are zero, not NaN.
    differs = ~(((x == jnp.inf) & (y == 1)) | ((x == -jnp.inf) & (y == 0)))
    return dtype, chosen(differs, x), y, differs


def _binary_cross_entropy(x: Array, y: Array) -> Array:
    return y * jax.nn.softplus(-x) + (1 - y) * jax.nn.softplus(x)


@jax.custom_jvp
def _log_wrong(x: Array, y: Array) -> Array:
    r"""The log-probability of being wrong, $\log((1 - y) \sigma(x) + y \sigma(-x))$."""
    return jnp.logaddexp(*_log_wrong_parts(x, y))


def _log_wrong_parts(x: Array, y: Array) -> tuple[Array, Array]:
    return jnp.log1p(-y) - jax.nn.softplus(-x), jnp.log(y) - jax.nn.softplus(x)


@_log_wrong.defjvp
def _log_wrong_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    if_no, if_yes = _log_wrong_parts(x, y)
    out = jnp.logaddexp(if_no, if_yes)
    slope = jnp.exp(if_no - out) * jax.nn.sigmoid(-x) - jnp.exp(if_yes - out) * jax.nn.sigmoid(x)
    # The derivative with respect to the label is multiplied by the loss. Where that is zero, the bound avoids 0 * inf.
    wrong = jnp.maximum(jnp.exp(out), jnp.finfo(out.dtype).tiny)
    return out, slope * dx - jnp.tanh(x / 2) / wrong * dy
