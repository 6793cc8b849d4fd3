"""Divergences of one distribution from another."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from .._support.arguments import Axes, axes_of, chosen, fitted, floating, mask_like, widened


def kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""The Kullback–Leibler divergence of the targets from the predictions, for targets that are probabilities.

    $$
    D(p \,\|\, q) = \sum_i p_i \, (\log p_i - \log q_i)
    $$

    The targets come from a teacher, say, or from several annotators. It is zero if the two distributions are one, and
    otherwise positive. An outcome whose target is zero adds nothing, whatever the prediction, and its derivatives are
    zero, by the target too: a probability that is zero is at its minimum, so it does not change to first order. An
    outcome that has a target and is predicted to be impossible makes the divergence infinite.

    Args:
        log_predictions: $\log q$, floats of any shape, as from `jax.nn.log_softmax`.
        targets: $p$, probabilities, in the shape of the predictions or in one that broadcasts to it.
        axis: along which the outcomes of one distribution lie; several, or None for all of them.
        where: a mask of the outcomes or of the distributions that count; what the others hold does not matter.

    Returns:
        A value for every distribution, in the dtype of the predictions.

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
    r"""`kl_divergence` of targets that are given by their logarithms, $\sum_i e^{\log p_i} (\log p_i - \log q_i)$.

    For targets that are themselves from `jax.nn.log_softmax`, of which nothing is rounded to zero.

    Args:
        log_predictions: $\log q$, floats of any shape, as from `jax.nn.log_softmax`.
        log_targets: $\log p$, in the shape of the predictions or in one that broadcasts to it; minus infinity where a
            target is zero, which adds nothing.
        axis: along which the outcomes of one distribution lie; several, or None for all of them.
        where: a mask of the outcomes or of the distributions that count; what the others hold does not matter.

    Returns:
        A value for every distribution, in the dtype of the predictions.
    """
    dtype, axes, mask, (log_q, log_p) = _arguments(
        "kl_divergence_with_log_targets", axis, where, log_predictions=log_predictions, log_targets=log_targets
    )
    log_p = chosen(mask, log_p, -jnp.inf)
    p, difference = jnp.exp(log_p), chosen(log_p != -jnp.inf, log_p - log_q)
    # A target that is too small for the dtype is positive all the same: infinity times it is infinity.
    p = jnp.where((p == 0) & (difference == jnp.inf), jnp.finfo(p.dtype).tiny, p)
    return jnp.sum(p * difference, axes).astype(dtype)


def generalized_kl_divergence(
    log_predictions: ArrayLike, targets: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None
) -> Float[Array, "..."]:
    r"""The Kullback–Leibler divergence of positive numbers that need not sum to one, such as rates or counts.

    $$
    D(p \,\|\, q) = \sum_i p_i \, (\log p_i - \log q_i) + q_i - p_i
    $$

    It is the Bregman divergence of $\sum_i p_i \log p_i - p_i$, every term of which is at least zero, and equal to
    `kl_divergence` if both sums are one.

    Args:
        log_predictions: $\log q$, floats of any shape.
        targets: $p$, at least zero, in the shape of the predictions or in one that broadcasts to it.
        axis: along which the terms of one sum lie; several, or None for all of them.
        where: a mask of the terms that count; what the others hold does not matter.

    Returns:
        A value for every sum, in the dtype of the predictions.

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
    """The dtype of the result, the axes, the mask, and the logarithms of the predictions and the targets."""
    given = dict(zip(arrays, floating(owner, **arrays), strict=True))
    log_predictions = given.pop("log_predictions")
    targets = fitted(owner, "log_predictions", log_predictions, **given)
    axes = axes_of(owner, axis, "log_predictions", log_predictions)
    mask = mask_like(owner, where, "log_predictions", log_predictions, axes)
    dtype, widened_arrays = widened(log_predictions, *targets)
    return dtype, axes, mask, widened_arrays


def _relative_entropy(log_q: Array, p: Array) -> Array:
    """The terms of the divergence, which are zero where the target is."""
    is_there = p != 0
    return p * chosen(is_there, jnp.log(chosen(is_there, p, 1.0)) - log_q)
