"""Gaussian noise added to the updates."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.schedule_values import AbstractCounted
from .._support.arithmetic import real_dtype, safe_increment
from .._support.keys import key, next_keys


class AddNoiseState(ma.AbstractState):
    """State of `AddNoise`: step count, and raw data of the key for the next noise."""

    optax_fields = ("count", "rng_key")

    count: ma.Count = ma.shared()
    rng_key: ma.Array = ma.shared()


class AddNoise(AbstractCounted):
    r"""Adds Gaussian noise to every entry, with a variance that decreases over time.

    $$
    u_t = g_t + \sigma_t z_t, \qquad z_t \sim \mathcal{N}(0, 1), \qquad
        \sigma_t^2 = \frac{\eta}{(1 + t)^\gamma}, \quad t = 0, 1, \dots
    $$

    For complex entries, $\sigma_t^2$ is the variance of real and imaginary part together.

    Args:
        eta: variance $\eta$ of the noise at the first step.
        gamma: exponent $\gamma$ of the decrease of the variance.
        key: a seed, or a JAX key, for the noise.

    References:
        Neelakantan et al., [Adding Gradient Noise Improves Learning for Very Deep
        Networks](https://arxiv.org/abs/1511.06807), 2015.
    """

    _keeps = "gradients"
    eta: ma.Number = ma.required_number(needs=ma.NON_NEGATIVE)
    gamma: ma.Number = ma.required_number()
    key: Any = key()

    def init(self, params: ma.Params) -> AddNoiseState:
        """A count of zero, and a copy of the key."""
        del params
        return AddNoiseState(count=jnp.zeros((), jnp.int32), rng_key=jnp.array(self.key, copy=True))

    def update(
        self, updates: ma.Updates, state: AddNoiseState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, AddNoiseState]:
        """The updates with noise, in their own dtypes, and the next key."""
        del params, extra
        now = self.at(state)
        # `eta` may be zero, where the derivative of `jnp.sqrt` is infinite.
        deviation = ma.safe_sqrt(now.eta / (1 + state.count.astype(ma.default_float())) ** now.gamma)
        leaves, treedef = jtu.tree_flatten(updates)
        kept, keys = next_keys(state.rng_key, len(leaves))
        noisy = [_with_noise(g, k, deviation) for g, k in zip(leaves, keys, strict=True)]
        return treedef.unflatten(noisy), AddNoiseState(count=safe_increment(state.count), rng_key=kept)


def _with_noise(g: ma.Array, k: ma.Array, deviation: ma.Array) -> ma.Array:
    dtype = ma.at_least_float32(g.dtype)
    noise = jax.random.normal(k, g.shape, dtype) * deviation.astype(real_dtype(dtype)).astype(dtype)
    return (g.astype(dtype) + noise).astype(g.dtype)


class NoisySGD(ma.AbstractOptimizer):
    r"""SGD with decreasing Gaussian noise added to the gradient, for very deep networks that are hard to train.

        optimizer = NoisySGD(0.1, eta=0.3)

    $$
    \begin{aligned}
    \sigma_t^2 &= \eta / (1 + t)^\gamma, \qquad z_t \sim \mathcal{N}(0, 1) \\
    w_{t+1} &= w_t - \alpha (g_t + \sigma_t z_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and independent noise in every coordinate.

    Args:
        learning_rate: learning rate $\alpha$, a number or a schedule.
        eta: variance $\eta$ of the noise at the first step.
        gamma: exponent $\gamma$ of the decrease of the variance.
        key: a seed, or a JAX key, for the noise.

    References:
        Neelakantan et al., [Adding Gradient Noise Improves Learning for Very Deep
        Networks](https://arxiv.org/abs/1511.06807), 2015.
    """

    learning_rate: ma.Number = ma.required_number()
    eta: ma.Number = ma.number(0.01, needs=ma.NON_NEGATIVE)
    gamma: ma.Number = ma.number(0.55)
    key: Any = key()

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(AddNoise), ma.ScaleByLearningRate(self.learning_rate))
