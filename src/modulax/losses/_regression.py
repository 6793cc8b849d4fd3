"""Distances between real numbers, and between vectors of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._support.arguments import Axes, axes_of, check_one_shape, chosen, floating, mask_like, real, widened
from ._pieces import unit


def _errors(owner: str, predictions: ArrayLike, targets: ArrayLike | None) -> tuple[Any, Array]:
    """The dtype of the loss, and what the predictions differ by from the targets, or from zero."""
    (predictions,) = floating(owner, predictions=predictions)
    if targets is None:
        dtype, (errors,) = widened(predictions)
        return dtype, errors
    (targets,) = real(owner, targets=targets)
    check_one_shape(owner, predictions=predictions, targets=targets)
    dtype, (predictions, targets) = widened(predictions, targets)
    return dtype, predictions - targets


def squared_error(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""The square of every error, $(\hat y - y)^2$.

    Its mean is the mean squared error. `l2_loss` is half of it, whose derivative is the error itself.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero if there are none.

    Returns:
        A value for every entry, in the dtype of the predictions.

    References:
        Bishop, [Pattern Recognition and Machine
        Learning](https://www.microsoft.com/en-us/research/publication/pattern-recognition-machine-learning/), 2006,
        section 1.1
    """
    dtype, errors = _errors("squared_error", predictions, targets)
    return jnp.square(errors).astype(dtype)


def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""Half the square of every error, $\tfrac12 (\hat y - y)^2$, whose derivative is the error.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero if there are none.

    Returns:
        A value for every entry, in the dtype of the predictions.
    """
    dtype, errors = _errors("l2_loss", predictions, targets)
    return (jnp.square(errors) / 2).astype(dtype)


def huber_loss(
    predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Quadratic for small errors and linear for large ones, so that outliers do not rule the fit.

    With $e = \hat y - y$,

    $$
    L = \begin{cases} \tfrac12 e^2 & |e| \le \delta \\ \delta \, (|e| - \tfrac12 \delta) & \text{otherwise} \end{cases}
    $$

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero if there are none.
        delta: $\delta$, the error at which the loss becomes linear.

    Returns:
        A value for every entry, in the dtype of the predictions.

    References:
        Huber, [Robust Estimation of a Location Parameter](https://doi.org/10.1214/aoms/1177703732), 1964
    """
    dtype, errors = _errors("huber_loss", predictions, targets)
    (delta,) = real("huber_loss", delta=delta)
    delta = delta.astype(errors.dtype)
    size = jnp.abs(errors)
    quadratic = jnp.minimum(size, delta)
    return (quadratic**2 / 2 + delta * (size - quadratic)).astype(dtype)


def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> Float[Array, "..."]:
    r"""The logarithm of the hyperbolic cosine of every error, $\log \cosh(\hat y - y)$.

    About $\tfrac12 e^2$ for small errors and $|e| - \log 2$ for large ones: a smooth `huber_loss`.

    Args:
        predictions: $\hat y$, floats of any shape.
        targets: $y$, of the same shape; zero if there are none.

    Returns:
        A value for every entry, in the dtype of the predictions.

    References:
        Chen et al., [Log Hyperbolic Cosine Loss Improves Variational
        Auto-Encoder](https://openreview.net/forum?id=rkglvsC9Ym), 2019
    """
    dtype, errors = _errors("log_cosh", predictions, targets)
    return _log_cosh(errors).astype(dtype)


@jax.custom_jvp
def _log_cosh(x: Array) -> Array:
    # log cosh x = log(1 + 2 sinh²(x/2)), of which nothing cancels for small x, and which overflows for large x.
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
    r"""The cosine of the angle between two vectors.

    $$
    \frac{\hat y \cdot y}{\max(\lVert \hat y \rVert, \varepsilon) \, \max(\lVert y \rVert, \varepsilon)}
    $$

    A vector of zeros has no direction: its similarity to everything is zero, and so are the derivatives. The lengths of
    the vectors do not matter, nor whether their squares are too large or too small for the dtype.

    Args:
        predictions: $\hat y$, vectors of floats along `axis`.
        targets: $y$, of the same shape.
        epsilon: $\varepsilon$, the least length that a vector is divided by.
        axis: along which the vectors lie; several, or None for all of them.
        where: a mask of the entries that count; what the others hold does not matter.

    Returns:
        A value in $[-1, 1]$ for every pair of vectors, in the dtype of the predictions.
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
    r"""One minus the cosine of the angle between two vectors: zero if they have one direction, two if opposite ones.

    Args:
        predictions: vectors of floats along `axis`.
        targets: of the same shape.
        epsilon: the least length that a vector is divided by.
        axis: along which the vectors lie; several, or None for all of them.
        where: a mask of the entries that count; what the others hold does not matter.

    Returns:
        A value in $[0, 2]$ for every pair of vectors, in the dtype of the predictions; see `cosine_similarity`.
    """
    dtype, similarity = _cosine("cosine_distance", predictions, targets, epsilon, axis, where)
    return (1 - similarity).astype(dtype)


def _cosine(
    owner: str, predictions: ArrayLike, targets: ArrayLike, epsilon: ArrayLike, axis: Axes, where: ArrayLike | None
) -> tuple[Any, Array]:
    """The dtype of the result, and the similarity before it is rounded to it."""
    predictions, targets = floating(owner, predictions=predictions, targets=targets)
    (epsilon,) = real(owner, epsilon=epsilon)
    check_one_shape(owner, predictions=predictions, targets=targets)
    axes = axes_of(owner, axis, "predictions", predictions)
    mask = mask_like(owner, where, "predictions", predictions)
    dtype, (x, y) = widened(predictions, targets)
    epsilon = epsilon.astype(x.dtype)
    return dtype, jnp.sum(unit(chosen(mask, x), axes, epsilon) * unit(chosen(mask, y), axes, epsilon), axes)
