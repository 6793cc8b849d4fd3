"""Regression losses, and the cosine similarity of vectors."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arguments import NON_NEGATIVE, Axes, axes_of, check_one_shape, floating, promoted
from ._arguments import chosen, scalars
from ._shared import mask_like, number_like, unit, with_targets


def _errors(owner: str, predictions: ArrayLike, targets: ArrayLike | None) -> tuple[Any, Array]:
    """Check the arguments; return the dtype of the loss and the errors, predictions minus targets (0 by default)."""
    if targets is None:
        dtype, (errors,) = promoted(*floating(owner, predictions=predictions))
        return dtype, errors
    predictions, targets = with_targets(owner, predictions=predictions, targets=targets)
    dtype, (predictions, targets) = promoted(predictions, targets)
    return dtype, predictions - targets


def squared_error(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""Compute the squared error of every entry, $(\hat y - y)^2$.

    Its mean is the mean squared error (MSE). `l2_loss` is half of it.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero by default.

    Returns:
        One value per entry, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, or the targets are not real or have another shape.

    References:
        Bishop, [Pattern Recognition and Machine
        Learning](https://www.microsoft.com/en-us/research/publication/pattern-recognition-machine-learning/), 2006,
        section 1.1
    """
    dtype, errors = _errors("squared_error", predictions, targets)
    return jnp.square(errors).astype(dtype)


def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""Compute the L2 loss of every entry, half the squared error: $\tfrac12 (\hat y - y)^2$.

    Its derivative is the error itself.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero by default.

    Returns:
        One value per entry, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, or the targets are not real or have another shape.
    """
    dtype, errors = _errors("l2_loss", predictions, targets)
    return (jnp.square(errors) / 2).astype(dtype)


def huber_loss(
    predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Compute the Huber loss: quadratic for small errors and linear for large ones, for robustness to outliers.

    With $e = \hat y - y$,

    $$
    L = \begin{cases} \tfrac12 e^2 & |e| \le \delta \\ \delta \, (|e| - \tfrac12 \delta) & \text{otherwise} \end{cases}
    $$

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero by default.
        delta: $\delta \ge 0$, error at which the loss changes from quadratic to linear. An array must broadcast to the
            predictions.

    Returns:
        One value per entry, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, the targets are not real or have another shape, or `delta` is
            negative or doesn't broadcast.

    References:
        Huber, [Robust Estimation of a Location Parameter](https://doi.org/10.1214/aoms/1177703732), 1964
    """
    dtype, errors = _errors("huber_loss", predictions, targets)
    delta = number_like("huber_loss", "predictions", errors, NON_NEGATIVE, delta=delta)
    size = jnp.abs(errors)
    quadratic = jnp.minimum(size, delta)
    return (quadratic * (size - quadratic / 2)).astype(dtype)  # also if delta is infinite


def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""Compute the log-cosh loss of every entry, $\log \cosh(\hat y - y)$: a smooth alternative to the Huber loss.

    It is about $\tfrac12 e^2$ for small errors $e$ and $|e| - \log 2$ for large ones.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero by default.

    Returns:
        One value per entry, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the predictions do not hold floats, or the targets are not real or have another shape.

    References:
        Chen et al., [Log Hyperbolic Cosine Loss Improves Variational
        Auto-Encoder](https://openreview.net/forum?id=rkglvsC9Ym), 2019
    """
    dtype, errors = _errors("log_cosh", predictions, targets)
    return _log_cosh(errors).astype(dtype)


@jax.custom_jvp
def _log_cosh(x: Array) -> Array:
    # log cosh x = log(1 + 2 sinh²(x/2)) is free of cancellation for small x, but overflows for large x.
    size = jnp.abs(x)
    small = jnp.log1p(2 * jnp.sinh(jnp.minimum(size, 1.0) / 2) ** 2)
    large = size + jnp.log1p(jnp.exp(-2 * size)) - jnp.log(jnp.asarray(2, x.dtype))
    return jnp.where(size < 1, small, large)


@_log_cosh.defjvp
def _log_cosh_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log_cosh(x), jnp.tanh(x) * dx


def cosine_similarity(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: Axes = -1,
    where: ArrayLike | None = None,
) -> Float[Array, "..."]:
    r"""Compute the cosine similarity of pairs of vectors.

    $$
    \frac{\hat y \cdot y}{\max(\lVert \hat y \rVert, \varepsilon) \, \max(\lVert y \rVert, \varepsilon)}
    $$

    A zero vector has no direction: its similarity to any vector is zero, and so are the derivatives. The vectors may
    have any length, even one whose square overflows or underflows in the dtype.

    Args:
        predictions: $\hat y$, vectors of floats along `axis`.
        targets: $y$, of the same shape.
        epsilon: $\varepsilon$, lower bound on the lengths in the denominator.
        axis: axis or axes of the vectors; None means all axes.
        where: mask of the entries to include; masked values are ignored.

    Returns:
        One value in $[-1, 1]$ per pair of vectors, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the arrays do not hold floats or differ in shape, `axis` is out of bounds, or the mask doesn't
            fit.
    """
    dtype, similarity = _cosine("cosine_similarity", predictions, targets, epsilon, axis, where)
    return similarity.astype(dtype)


def cosine_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: Axes = -1,
    where: ArrayLike | None = None,
) -> Float[Array, "..."]:
    """Compute the cosine distance, one minus the cosine similarity: 0 for equal directions, 2 for opposite ones.

    See `cosine_similarity`.

    Args:
        predictions: vectors of floats along `axis`.
        targets: of the same shape.
        epsilon: lower bound on the lengths in the denominator.
        axis: axis or axes of the vectors; None means all axes.
        where: mask of the entries to include; masked values are ignored.

    Returns:
        One value in $[0, 2]$ per pair of vectors, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if the arrays do not hold floats or differ in shape, `axis` is out of bounds, or the mask doesn't
            fit.
    """
    dtype, similarity = _cosine("cosine_distance", predictions, targets, epsilon, axis, where)
    return (1 - similarity).astype(dtype)


def _cosine(
    owner: str, predictions: ArrayLike, targets: ArrayLike, epsilon: ArrayLike, axis: Axes, where: ArrayLike | None
) -> tuple[Any, Array]:
    """Return the dtype of the result, and the cosine similarity before it is rounded to that dtype."""
    predictions, targets = floating(owner, predictions=predictions, targets=targets)
    check_one_shape(owner, predictions=predictions, targets=targets)
    axes = axes_of(owner, axis, "predictions", predictions)
    mask = mask_like(owner, where, "predictions", predictions)
    dtype, (x, y) = promoted(predictions, targets)
    (epsilon,) = scalars(owner, x.dtype, NON_NEGATIVE, epsilon=epsilon)
    return dtype, jnp.sum(unit(chosen(mask, x), axes, epsilon) * unit(chosen(mask, y), axes, epsilon), axes)
