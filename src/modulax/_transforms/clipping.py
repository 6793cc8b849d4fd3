"""Bounds on the size of the updates: of every entry, or of all of them together."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from .._checks import NON_NEGATIVE
from .._leafwise import AbstractLeafwise
from .._schedule import Number, number
from ..tree._math import norm


def clip_entries(x: Array, bound: Any) -> Array:
    """Every entry, or its real and its imaginary part, in the interval from `-bound` to `bound`."""
    if jnp.iscomplexobj(x):
        return jnp.clip(x.real, -bound, bound) + 1j * jnp.clip(x.imag, -bound, bound)
    return jnp.clip(x, -bound, bound)


class Clip(AbstractLeafwise):
    r"""Clips every entry to an interval: $u = \min(\max(g, -\Delta), \Delta)$.

    Of a complex entry the real and the imaginary part are clipped, each by itself.

    Args:
        max_delta: the bound $\Delta$.
    """

    max_delta: Number = number(needs=NON_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        return clip_entries(g, self.max_delta), s


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

    cites: ClassVar[tuple[str, ...]] = ("pascanu2013",)

    max_norm: Number = number(needs=NON_NEGATIVE)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        total = norm(updates)
        exceeds = total > self.max_norm
        factor = jnp.where(exceeds, self.max_norm / jnp.where(exceeds, total, 1), 1)
        return jnp.where(jnp.isnan(total), total, factor)

    def update_leaf(self, now, g, s, p):
        del p
        return jnp.where(now == 0, jnp.zeros_like(g), now * g), s
