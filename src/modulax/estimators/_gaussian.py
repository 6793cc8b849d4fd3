"""Gaussian distributions with independent entries."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._plugin.arguments import broadcast, floating, promoted, real_arrays
from .._plugin.states import AbstractModule


class MultiNormal(AbstractModule):
    r"""A Gaussian with independent entries, $\mathcal N(\mu, \operatorname{diag} e^{2s})$.

    Create it with `multi_normal`.

    Args:
        loc: mean $\mu$.
        log_scale: logarithm $s$ of the standard deviation.
    """

    loc: Float[Array, "..."]
    log_scale: Float[Array, "..."]

    @property
    def params(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The mean and the logarithm of the standard deviation, in the shapes they were given in."""
        return self.loc, self.log_scale

    @property
    def _param_shape(self) -> tuple[int, ...]:
        """The shape of a sample, under its name in optax."""
        return jnp.broadcast_shapes(self.loc.shape, self.log_scale.shape)

    def mean(self) -> Float[Array, "..."]:
        """The mean, in the shape of a sample."""
        dtype, mean, _ = entries(self)
        return mean.astype(dtype)

    def sample(self, shape: Sequence[int], seed: PRNGKeyArray) -> Float[Array, "..."]:
        """Draw independent samples, differentiable with respect to mean and standard deviation (reparameterized).

        Args:
            shape: leading axes of the result: how many samples.
            seed: a random key.
        """
        dtype, mean, _ = entries(self)
        noise = draw_noise(self, shape, seed)
        return (jnp.broadcast_to(mean, noise.shape) + noise).astype(dtype)

    def log_prob(self, x: ArrayLike) -> Float[Array, "..."]:
        """Compute the log-density.

        Args:
            x: a sample, or several along leading axes.

        Returns:
            One value per sample.

        Raises:
            ValueError: if `x` is not real, or its shape doesn't end with that of a sample.
        """
        (x,) = real_arrays("multi_normal.log_prob", x=x)
        dtype, (x, loc, log_scale) = promoted(x, self.loc, self.log_scale)
        mean, log_scale = broadcast("multi_normal", loc=loc, log_scale=log_scale)
        n_axes = x.ndim - mean.ndim
        if n_axes < 0 or x.shape[n_axes:] != mean.shape:
            raise ValueError(f"`multi_normal.log_prob` needs an `x` whose shape ends with {mean.shape}, got {x.shape}.")
        mean, log_scale = (jnp.broadcast_to(y, x.shape) for y in (mean, log_scale))
        z = (x - mean) * jnp.exp(-log_scale)
        logs = -(z**2) / 2 - log_scale - math.log(2 * math.pi) / 2
        return jnp.sum(logs, range(n_axes, x.ndim)).astype(dtype)


def entries(gaussian: MultiNormal) -> tuple[Any, Array, Array]:
    """Return the dtype of samples, and the mean and log-scale of each entry in at least float32."""
    dtype, (loc, log_scale) = promoted(gaussian.loc, gaussian.log_scale)
    mean, log_scale = broadcast("multi_normal", loc=loc, log_scale=log_scale)
    return dtype, mean, log_scale


def draw_noise(gaussian: MultiNormal, shape: Sequence[int], seed: PRNGKeyArray) -> Array:
    """Draw samples minus the mean, in at least float32."""
    _, _, log_scale = entries(gaussian)
    noise = jax.random.normal(seed, (*shape, *log_scale.shape), log_scale.dtype)
    return jnp.broadcast_to(jnp.exp(log_scale), noise.shape) * noise


def multi_normal(loc: ArrayLike, log_scale: ArrayLike) -> MultiNormal:
    r"""Create a Gaussian with independent entries, $\mathcal N(\mu, \operatorname{diag} e^{2s})$.

    Use it as `dist_builder` of the estimators with `params=(loc, log_scale)`. The scale is parameterized by its
    logarithm, so that a gradient step can't make the standard deviation negative.

    Args:
        loc: mean $\mu$, floats in the shape of a sample.
        log_scale: logarithm $s$ of the standard deviation, in a shape that broadcasts with `loc`.

    Returns:
        An immutable distribution with `sample(shape, seed)`, `log_prob(x)`, `mean()` and `params`.

    Raises:
        ValueError: if an argument does not hold floats, or the shapes don't broadcast.
    """
    loc, log_scale = floating("multi_normal", loc=loc, log_scale=log_scale)
    broadcast("multi_normal", loc=loc, log_scale=log_scale)
    return MultiNormal(loc, log_scale)


def is_gaussian(dist: Any) -> bool:
    """Whether the distribution is made by `multi_normal`."""
    return isinstance(dist, MultiNormal)
