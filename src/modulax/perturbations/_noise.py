"""Distributions of noise: how to draw from them, and the logarithm of their density."""

import abc
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from .._support.module import AbstractModule


class AbstractNoise(AbstractModule):
    """The distribution of one number. Of an array, the entries are independent.

    One of your own needs a density that is positive and differentiable everywhere.
    """

    @abc.abstractmethod
    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        """Independent numbers from the distribution.

        Args:
            key: a random key.
            sample_shape: the shape of the result.
            dtype: its dtype.
        """

    @abc.abstractmethod
    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The logarithm of the density at each entry.

        Args:
            inputs: where.
        """


class Normal(AbstractNoise):
    r"""The standard normal distribution, of density $\frac{1}{\sqrt{2\pi}} e^{-z^2/2}$."""

    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        return jax.random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return -(jnp.square(inputs) + math.log(2 * math.pi)) / 2


class Gumbel(AbstractNoise):
    r"""The standard Gumbel distribution, of density $e^{-z - e^{-z}}$: that of the largest of many numbers.

    An entry of $\theta + z$ is the largest one with the probability that the softmax of $\theta$ gives it.

    References:
        Maddison et al., [A* Sampling](https://arxiv.org/abs/1411.0030), 2014
    """

    def sample(self, key: Array, sample_shape: tuple[int, ...] = (), dtype: DTypeLike = float) -> Float[Array, "..."]:
        return jax.random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return -inputs - jnp.exp(-inputs)
