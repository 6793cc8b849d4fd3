"""Noise distributions, with samples and log-densities."""

import abc
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from .._plugin.states import AbstractModule


class AbstractNoise(AbstractModule):
    """Base class of noise distributions on the real line; the entries of an array are independent.

    A distribution of your own needs a density that is positive and differentiable everywhere.
    """

    @abc.abstractmethod
    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        """Draw independent samples.

        Args:
            key: a random key.
            sample_shape: shape of the result.
            dtype: dtype of the result.
        """

    @abc.abstractmethod
    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Compute the log-density at each entry.

        Args:
            inputs: where to evaluate it.
        """


class Normal(AbstractNoise):
    r"""The standard normal distribution, with density $\frac{1}{\sqrt{2\pi}} e^{-z^2/2}$."""

    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        return jax.random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return -(jnp.square(inputs) + math.log(2 * math.pi)) / 2


class Gumbel(AbstractNoise):
    r"""The standard Gumbel distribution, with density $e^{-z - e^{-z}}$.

    It is the limit distribution of the maximum of many samples. With Gumbel noise $z$, the probability that an entry of
    $\theta + z$ is the largest is its softmax probability (the Gumbel-max trick).

    References:
        Maddison et al., [A* Sampling](https://arxiv.org/abs/1411.0030), 2014
    """

    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        return jax.random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return -inputs - jnp.exp(-inputs)
