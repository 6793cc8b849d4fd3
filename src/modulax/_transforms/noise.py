"""Gaussian noise added to the updates."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._protocol.counted import AbstractCounted
from .._protocol.fields import Number, required_number
from .._support.arithmetic import at_least_float32, default_float, real_dtype, safe_increment, safe_sqrt
from .._support.checks import NON_NEGATIVE
from .._support.keys import key, next_keys
from .._support.module import AbstractState, shared
from .._support.types import Count, Params, Updates


class AddNoiseState(AbstractState):
    """State of `AddNoise`: step count, and raw data of the key for the next noise."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "rng_key")

    count: Count = shared()
    rng_key: Array = shared()


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

    _keeps_gradients: ClassVar[bool] = True
    eta: Number = required_number(needs=NON_NEGATIVE)
    gamma: Number = required_number()
    key: Any = key()

    def init(self, params: Params) -> AddNoiseState:
        """A count of zero, and a copy of the key."""
        del params
        return AddNoiseState(count=jnp.zeros((), jnp.int32), rng_key=jnp.array(self.key, copy=True))

    def update(
        self, updates: Updates, state: AddNoiseState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, AddNoiseState]:
        """The updates with noise, in their own dtypes, and the next key."""
        del params, extra
        now = self.at(state)
        # `eta` may be zero, where the derivative of `jnp.sqrt` is infinite.
        deviation = safe_sqrt(now.eta / (1 + state.count.astype(default_float())) ** now.gamma)
        leaves, treedef = jtu.tree_flatten(updates)
        kept, keys = next_keys(state.rng_key, len(leaves))
        noisy = [_with_noise(g, k, deviation) for g, k in zip(leaves, keys, strict=True)]
        return treedef.unflatten(noisy), AddNoiseState(count=safe_increment(state.count), rng_key=kept)


def _with_noise(g: Array, k: Array, deviation: Array) -> Array:
    dtype = at_least_float32(g.dtype)
    noise = jax.random.normal(k, g.shape, dtype) * deviation.astype(real_dtype(dtype)).astype(dtype)
    return (g.astype(dtype) + noise).astype(g.dtype)
