"""Divergences between distributions."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from .._plugin.arguments import Axes, axes_of, floating, promoted
from ._arguments import chosen, fitted
from ._shared import mask_like


def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Compute the Kullback–Leibler (KL) divergence of target probabilities from predicted log-probabilities.

    $$
    D(p \,\|\, q) = \sum_i p_i \, (\log p_i - \log q_i)
    $$

    For soft targets, such as those of a teacher in distillation, or of several annotators. It is zero if the two
    distributions are equal and positive otherwise. An outcome with target zero contributes nothing, whatever the
    prediction; its derivatives are zero too, also with respect to the target. An outcome with a positive target that is
    predicted to be impossible makes the divergence infinite.

    Args:
        log_predictions: $\log q$, floats of any shape, for example from `jax.nn.log_softmax`.
        targets: $p$, probabilities, in a shape that broadcasts to that of the predictions.
        axis: axis or axes of the outcomes of one distribution; None means all axes.
        where: mask of the outcomes to include, or of the distributions to include; masked values are ignored.

    Returns:
        One divergence per distribution, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if predictions or targets do not hold floats, a shape or the mask doesn't fit, or `axis` is out of
            bounds.

    References:
        Kullback and Leibler, [On Information and Sufficiency](https://doi.org/10.1214/aoms/1177729694), 1951
    """
    dtype, axes, mask, (log_q, p) = _arguments(
        "kl_divergence", axis, where, log_predictions=log_predictions, targets=targets
    )
    return jnp.sum(_relative_entropy(log_q, chosen(mask, p)), axes).astype(dtype)


def kl_divergence_with_log_targets(
    log_predictions: ArrayLike, log_targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Compute the Kullback–Leibler (KL) divergence for targets given as log-probabilities.

    $$
    D(p \,\|\, q) = \sum_i e^{\log p_i} \, (\log p_i - \log q_i)
    $$

    The same as `kl_divergence`, for targets from `jax.nn.log_softmax`, whose small probabilities would underflow.

    Args:
        log_predictions: $\log q$, floats of any shape, for example from `jax.nn.log_softmax`.
        log_targets: $\log p$, in a shape that broadcasts to that of the predictions; $-\infty$ for a target of zero,
            which contributes nothing.
        axis: axis or axes of the outcomes of one distribution; None means all axes.
        where: mask of the outcomes to include, or of the distributions to include; masked values are ignored.

    Returns:
        One divergence per distribution, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if predictions or targets do not hold floats, a shape or the mask doesn't fit, or `axis` is out of
            bounds.
    """
    dtype, axes, mask, (log_q, log_p) = _arguments(
        "kl_divergence_with_log_targets", axis, where, log_predictions=log_predictions, log_targets=log_targets
    )
    log_p = chosen(mask, log_p, -jnp.inf)
    p, difference = jnp.exp(log_p), chosen(log_p != -jnp.inf, log_p - log_q)
    # A target that underflows to zero is still positive: infinity times it is infinity, not NaN.
    p = jnp.where((p == 0) & (difference == jnp.inf), jnp.finfo(p.dtype).tiny, p)
    return jnp.sum(p * difference, axes).astype(dtype)


def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""Compute the generalized Kullback–Leibler divergence, for non-negative values that need not sum to one.

    $$
    D(p \,\|\, q) = \sum_i p_i \, (\log p_i - \log q_i) + q_i - p_i
    $$

    For rates, counts or intensities. It is the Bregman divergence of $\sum_i p_i \log p_i - p_i$; every term is
    non-negative. If both sums are one, it equals `kl_divergence`.

    Args:
        log_predictions: $\log q$, floats of any shape.
        targets: $p \ge 0$, in a shape that broadcasts to that of the predictions.
        axis: axis or axes to sum over; None means all axes.
        where: mask of the terms to include; masked values are ignored.

    Returns:
        One divergence per sum, in the dtype that predictions and targets promote to.

    Raises:
        ValueError: if predictions or targets do not hold floats, a shape or the mask doesn't fit, or `axis` is out of
            bounds.

    References:
        Bregman, [The Relaxation Method of Finding the Common Point of Convex
        Sets](https://doi.org/10.1016/0041-5553(67)90040-7), 1967

        Boyd and Vandenberghe, [Convex Optimization](https://stanford.edu/~boyd/cvxbook/), 2004, page 90
    """
    dtype, axes, mask, (log_q, p) = _arguments(
        "generalized_kl_divergence", axis, where, log_predictions=log_predictions, targets=targets
    )
    log_q, p = chosen(mask, log_q, -jnp.inf), chosen(mask, p)
    return jnp.sum(_relative_entropy(log_q, p) + jnp.exp(log_q) - p, axes).astype(dtype)


convex_kl_divergence = generalized_kl_divergence  # its former name


def _arguments(
    owner: str, axis: Axes, where: ArrayLike | None, **arrays: ArrayLike
) -> tuple[Any, tuple[int, ...], Bool[Array, "..."] | None, list[Array]]:
    """Check the arguments; return the result's dtype, the axes, the mask, and the promoted predictions and targets."""
    given = dict(zip(arrays, floating(owner, **arrays), strict=True))
    log_predictions = given.pop("log_predictions")
    targets = fitted(owner, "log_predictions", log_predictions, **given)
    axes = axes_of(owner, axis, "log_predictions", log_predictions)
    mask = mask_like(owner, where, "log_predictions", log_predictions, axes)
    dtype, widened_arrays = promoted(log_predictions, *targets)
    return dtype, axes, mask, widened_arrays


def _relative_entropy(log_q: Array, p: Array) -> Array:
    r"""The terms $p \, (\log p - \log q)$, zero where the target is zero."""
    is_there = p != 0
    return p * chosen(is_there, jnp.log(chosen(is_there, p, 1.0)) - log_q)
