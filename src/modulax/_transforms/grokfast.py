"""GrokFast: amplified averages of the gradients, before any optimizer."""

import functools
import operator
from dataclasses import KW_ONLY
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import moment, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.placement import typed_like
from .._support.types import Count, Shared


class GrokFastState(AbstractState):
    """State of `GrokFast`: step count, and the average of the gradients."""

    ema: PyTree = like_params()
    count: Shared[Count] = counter()


class GrokFast(AbstractLeafwise[GrokFastState]):
    r"""Amplifies the slow part of the gradients, their exponential moving average: GrokFast-EMA.

    $$
    \begin{aligned}
    m_t &= \alpha m_{t-1} + (1 - \alpha) g_t, \qquad m_0 = g_1 \\
    u_t &= g_t + \lambda m_t
    \end{aligned}
    $$

    Put it before an optimizer. It shortens the time from memorization to generalization, and is usually combined with a
    larger weight decay:

        Chain(GrokFast(), AdamW(1e-3, weight_decay=1.0))

    Args:
        alpha: exponential decay rate $\alpha$ of the average.
        lamb: factor $\lambda$ of the average.
        accumulator_dtype: dtype of the average $m$; by default that of the parameters.

    References:
        Lee et al., [Grokfast: Accelerated Grokking by Amplifying Slow Gradients](https://arxiv.org/abs/2405.20233),
        2024, and the authors' [code](https://github.com/ironjr/grokfast).
    """

    alpha: Number = number(0.98, needs=DECAY)
    lamb: Number = number(2.0)
    _: KW_ONLY
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return GrokFastState(ema=zeros_in(p, self.accumulator_dtype))

    def prepare(self, count):
        return jnp.where(count == 0, 0, self.alpha)  # the average starts at the first gradient

    def update_leaf(self, now, g, s, p):
        del p
        m = moment(now, s.ema, g)
        return self.lamb * m + g, GrokFastState(ema=m)


class GrokFastMAState(AbstractState):
    """State of `GrokFastMA`: step count, and the last gradients.

    The gradient of step $t$, counting from zero, is at index $t$ modulo the length of the window.
    """

    window: PyTree = like_params()
    count: Shared[Count] = counter()


class _Window(NamedTuple):
    place: Int[Array, ""]
    weight: Float[Array, ""]


_FEW = 8  # of so many, XLA for TPU fuses a sum with what reads it


def _total(window: Array) -> Array:
    """The sum of the arrays along the first axis.

    XLA for TPU stores the result of a reduction over that axis, and XLA for CPU reads the axis with a stride, which is
    up to 50 times slower than the sum of one array after the other.
    """
    if len(window) <= _FEW:
        return functools.reduce(operator.add, window)

    def in_turn(window: Array) -> Array:
        return jax.lax.fori_loop(1, len(window), lambda i, total: total + window[i], window[0])

    return jax.lax.platform_dependent(window, cpu=in_turn, default=lambda window: jnp.sum(window, axis=0))


class GrokFastMA(AbstractLeafwise[GrokFastMAState]):
    r"""Amplifies the mean of the last gradients: GrokFast-MA. `GrokFast` needs less memory.

    $$
    u_t = g_t + \frac{\lambda}{k} \sum_{i=0}^{k-1} g_{t-i}
    $$

    for a window of $k$ gradients, and $u_t = g_t$ until the window is full. Without `warmup`, the mean of the gradients
    so far is added from the first step on.

        Chain(GrokFastMA(100), AdamW(1e-3, weight_decay=0.01))

    Args:
        window_size: number $k$ of gradients in the window, each of which is kept in the state.
        lamb: factor $\lambda$ of the mean.
        use_mean: whether to add the mean of the window; otherwise its sum.
        warmup: whether to leave the gradients unchanged until the window is full.
        accumulator_dtype: dtype of the window; by default that of the parameters.

    References:
        Lee et al., [Grokfast: Accelerated Grokking by Amplifying Slow Gradients](https://arxiv.org/abs/2405.20233),
        2024, and the authors' [code](https://github.com/ironjr/grokfast).
    """

    window_size: int = eqx.field(static=True, default=100, metadata={"least": 1})
    lamb: Number = number(5.0)
    _: KW_ONLY
    use_mean: bool = eqx.field(static=True, default=True)
    warmup: bool = eqx.field(static=True, default=True)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        zeros = zeros_in(p, self.accumulator_dtype)
        return GrokFastMAState(window=jnp.broadcast_to(zeros, (self.window_size, *p.shape)))  # sharded like `p`

    def prepare(self, count):
        k = self.window_size
        number_in_it = jnp.minimum(count + 1, k)
        weight = self.lamb / number_in_it if self.use_mean else self.lamb
        is_ready = number_in_it >= k if self.warmup else True
        return _Window((count % k).astype(jnp.int32), jnp.where(is_ready, weight, 0))

    def update_leaf(self, now, g, s, p):
        del p
        window = s.window.at[now.place].set(typed_like(g, s.window[now.place]))
        return now.weight * _total(window) + g, GrokFastMAState(window=window)
