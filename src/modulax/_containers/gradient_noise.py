"""What `MultiSteps` measures of the noise of the gradients that it accumulates."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._support.arithmetic import abs_sq, moment
from .._support.module import AbstractState, first_values, shared
from .._support.types import Count
from ..microbatching._noise_scale import gradient_noise, noise_scale
from ..tree._math import norm, total

_DECAY = 0.99  # of the averages: over about a hundred steps


class GradientNoiseState(AbstractState):
    r"""What `MultiSteps(..., noise_scale=True)` measures, in units of mini-batches.

    `grad_squared_norm` and `grad_variance` are exponential moving averages over the steps, with decay 0.99 and without
    bias, of the estimates of $|G|^2$ and $\operatorname{tr} \Sigma$; `noise_scale` is their quotient. `weight_sum` is
    the sum of the weights of the averages, and `deviations` the sum of the squared distances of the gradients since the
    last step from their mean.
    """

    noise_scale: Float[Array, ""] = shared(starts=0.0, metric=True)
    grad_squared_norm: Float[Array, ""] = shared(starts=0.0, metric=True)
    grad_variance: Float[Array, ""] = shared(starts=0.0, metric=True)
    weight_sum: Float[Array, ""] = shared(starts=0.0)
    deviations: Float[Array, ""] = shared(starts=0.0)


def no_noise() -> GradientNoiseState:
    """The state before the first gradient."""
    return GradientNoiseState(**first_values(GradientNoiseState, None))


def deviations_with(
    deviations: Float[Array, ""], means: Sequence[Array], grads: Sequence[Array], n: Count
) -> Float[Array, ""]:
    """The squared distances of `n` gradients from their mean, with that of the last one, by Welford's recursion.

    Args:
        deviations: those of the gradients before it.
        means: the mean of the gradients before it.
        grads: the last gradient.
        n: the number of gradients.
    """
    apart = total(lambda mean, g: abs_sq(g - mean), means, grads).astype(deviations.dtype)
    count = n.astype(apart.dtype)
    # The mean of no gradients is zero, and the first gradient has no distance from its mean.
    return deviations + jnp.where(n > 1, (count - 1) / count * apart, 0)


def after_step(
    noise: GradientNoiseState, deviations: Float[Array, ""], means: Sequence[Array], n: Count
) -> GradientNoiseState:
    """The averages with the estimates of one step, unless it has only one gradient, or one that is not finite.

    Args:
        noise: the state before the step.
        deviations: those of the gradients of the step.
        means: their mean.
        n: their number.
    """
    square, variance = gradient_noise(deviations, norm(means, squared=True).astype(deviations.dtype), n)
    # A NaN would stay in the averages.
    is_known = (n > 1) & jnp.isfinite(square) & jnp.isfinite(variance)
    weight_sum = moment(_DECAY, noise.weight_sum, 1.0)
    averages = [
        jnp.where(is_known, old + (1 - _DECAY) / weight_sum * (new - old), old)
        for old, new in ((noise.grad_squared_norm, square), (noise.grad_variance, variance))
    ]
    return GradientNoiseState(
        noise_scale(*averages),
        *averages,
        weight_sum=jnp.where(is_known, weight_sum, noise.weight_sum),
        deviations=jnp.zeros_like(deviations),
    )
