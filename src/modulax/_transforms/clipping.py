"""Bounds on the size of the updates: of every entry, or of all of them together."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from .._checks import NON_NEGATIVE
from .._leafwise import AbstractLeafwise
from .._schedule import Number, number
from ..tree._math import norm


class Clip(AbstractLeafwise):
    r"""Clips every entry to an interval: $u = \min(\max(g, -\Delta), \Delta)$.

    Of a complex entry the real and the imaginary part are clipped, each by itself.

    Args:
        max_delta: the bound $\Delta$.
    """

    max_delta: Number = number(needs=NON_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        bound = self.max_delta
        if jnp.iscomplexobj(g):
            return jnp.clip(g.real, -bound, bound) + 1j * jnp.clip(g.imag, -bound, bound), s
        return jnp.clip(g, -bound, bound), s


def factor_within(bound: Any, total: Array) -> Array:
    """What something of norm `total` is multiplied by so that its norm is at most `bound`; NaN for NaN."""
    exceeds = total > bound
    factor = jnp.where(exceeds, bound / jnp.where(exceeds, total, 1), 1)
    return jnp.where(jnp.isnan(total), total, factor)


def scaled_down(x: Array, factor: Array) -> Array:
    """The array times the factor, where a factor of zero makes zero of an infinity too."""
    return jnp.where(factor == 0, jnp.zeros_like(x), factor * x)


class ClipByGlobalNorm(AbstractLeafwise):
    r"""Scales all updates together so that their norm is at most a given one.

    $$
    u = g \cdot \min(1, \Delta / \|g\|_2), \qquad \|g\|_2^2 = \sum_{\text{leaves}} \sum_i |g_i|^2
    $$

    The norm is accumulated in at least float32. Zero updates stay zero, also for a bound of zero. Where the norm
    overflows the update is zero, so that no NaN is made of an infinity; a NaN stays visible.

    Args:
        max_norm: the bound $\Delta$.

    References:
        Pascanu et al., [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063),
        2013.
    """

    max_norm: Number = number(needs=NON_NEGATIVE)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return factor_within(self.max_norm, norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return scaled_down(g, now), s
