"""Cross-entropies of classes that may each be right or wrong."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import chosen, fitted, floating, real, widened


def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Float[Array, "..."]:
    r"""The cross-entropy of a yes or no: for two classes, or for many of which several may be right at once.

    $$
    -y \log \sigma(x) - (1 - y) \log \sigma(-x)
    $$

    It is not `softmax_cross_entropy` of two logits, but of one: that of yes.

    Args:
        logits: $x$, floats of any size. Infinite ones are certain: the loss is zero if the label agrees, and infinite
            if not.
        labels: $y$, zero, one or a probability between them, in the shape of the logits or in one that broadcasts to
            it. Booleans and integers will do.

    Returns:
        A value for every logit, in the dtype that logits and labels have together.

    References:
        Goodfellow et al., [Deep Learning](https://www.deeplearningbook.org/contents/mlp.html), 2016, section 6.2
    """
    (x,) = floating("sigmoid_binary_cross_entropy", logits=logits)
    (y,) = real("sigmoid_binary_cross_entropy", labels=labels)
    dtype, (x, y) = widened(x, *fitted("sigmoid_binary_cross_entropy", "logits", x, labels=y))
    differs = _differs(x, y)
    x = chosen(differs, x)
    return chosen(differs, _binary_cross_entropy(x, y)).astype(dtype)


def sigmoid_focal_loss(
    logits: ArrayLike, labels: ArrayLike, *, alpha: ArrayLike | None = None, gamma: ArrayLike = 2.0
) -> Float[Array, "..."]:
    r"""The binary cross-entropy with less weight for what is right already, where one answer is rare.

    $$
    \alpha_t \, (1 - p_t)^\gamma \, \bigl(-y \log \sigma(x) - (1 - y) \log \sigma(-x)\bigr), \qquad
    \begin{aligned}
    p_t &= y \, \sigma(x) + (1 - y) \, \sigma(-x) \\
    \alpha_t &= y \, \alpha + (1 - y) (1 - \alpha)
    \end{aligned}
    $$

    With $\gamma = 0$ and no $\alpha$ it is `sigmoid_binary_cross_entropy`. The logarithm of $1 - p_t$ is what is
    computed, so that value and derivatives are right for large logits and for any $\gamma \ge 0$.

    Args:
        logits: $x$, floats of any size.
        labels: $y$, zero, one or a probability between them, in the shape of the logits or in one that broadcasts to
            it. Booleans and integers will do.
        alpha: $\alpha$, the weight of yes, between zero and one; that of no is the rest. Without it both are one.
        gamma: $\gamma$, how much less what is right counts; the authors take 2.

    Returns:
        A value for every logit, in the dtype that logits and labels have together.

    References:
        Lin et al., [Focal Loss for Dense Object Detection](https://arxiv.org/abs/1708.02002), 2017
    """
    owner = "sigmoid_focal_loss"
    (x,) = floating(owner, logits=logits)
    (y,) = real(owner, labels=labels)
    dtype, (x, y) = widened(x, *fitted(owner, "logits", x, labels=y))
    gamma = _number(owner, x, gamma=gamma)
    differs = _differs(x, y)
    x = chosen(differs, x)
    loss = jnp.exp(gamma * _log_wrong(x, y)) * _binary_cross_entropy(x, y)
    if alpha is not None:
        alpha = _number(owner, x, alpha=alpha)
        loss = (alpha * y + (1 - alpha) * (1 - y)) * loss
    return chosen(differs, loss).astype(dtype)


def _number(owner: str, x: Array, **number: ArrayLike) -> Array:
    """A hyperparameter in the shape and the dtype of the logits."""
    (name,) = number
    return fitted(owner, "logits", x, **{name: real(owner, **number)[0].astype(x.dtype)})[0]


def _differs(x: Array, y: Array) -> Array:
    """False where an infinite logit says what the label says: there the loss is zero, and so are its derivatives."""
    return ~(((x == jnp.inf) & (y == 1)) | ((x == -jnp.inf) & (y == 0)))


def _binary_cross_entropy(x: Array, y: Array) -> Array:
    return y * jax.nn.softplus(-x) + (1 - y) * jax.nn.softplus(x)


@jax.custom_jvp
def _log_wrong(x: Array, y: Array) -> Array:
    r"""The logarithm of the probability of being wrong, $\log((1 - y) \sigma(x) + y \sigma(-x))$."""
    return jnp.logaddexp(*_log_wrong_parts(x, y))


def _log_wrong_parts(x: Array, y: Array) -> tuple[Array, Array]:
    return jnp.log1p(-y) - jax.nn.softplus(-x), jnp.log(y) - jax.nn.softplus(x)


@_log_wrong.defjvp
def _log_wrong_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    if_no, if_yes = _log_wrong_parts(x, y)
    out = jnp.logaddexp(if_no, if_yes)
    slope = jnp.exp(if_no - out) * jax.nn.sigmoid(-x) - jnp.exp(if_yes - out) * jax.nn.sigmoid(x)
    # By the label, it may overflow where it is multiplied by a loss of zero.
    wrong = jnp.maximum(jnp.exp(out), jnp.finfo(out.dtype).tiny)
    return out, slope * dx - jnp.tanh(x / 2) / wrong * dy
