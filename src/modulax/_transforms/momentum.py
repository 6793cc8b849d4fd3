"""Momentum, the exponential moving average, and the sum of several updates."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, PyTree

from .._protocol.fields import Number, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import at_least_float32, bias, moment, zeros_in
from .._support.checks import DECAY, WHOLE
from .._support.module import AbstractState, counter, like_params
from .._support.placement import typed_like
from .._support.types import Count, Shared


class TraceState(AbstractState):
    """State of `Trace`: the accumulated updates."""

    optax_fields = ("trace",)

    trace: PyTree = like_params(moment=lambda rule: 1 - rule.decay)


class Trace(AbstractLeafwise[TraceState]):
    r"""Momentum: adds a decaying sum of past updates (heavy ball, or Nesterov momentum).

    $$
    \begin{aligned}
    v_t &= \mu v_{t-1} + g_t \\
    u_t &= v_t \quad\text{or, with Nesterov momentum,}\quad u_t = \mu v_t + g_t
    \end{aligned}
    $$

    This is a sum; for the average use `Ema`. Under a constant gradient, steps become $1 / (1 - \mu)$ times as long as
    without momentum.

    Args:
        decay: momentum coefficient $\mu$.
        nesterov: whether to use Nesterov momentum.
        accumulator_dtype: dtype of the momentum $v$; by default that of the parameters.

    References:
        Polyak, [Some methods of speeding up the convergence of iteration
        methods](https://doi.org/10.1016/0041-5553(64)90137-5), 1964;
        Sutskever et al., [On the importance of initialization and momentum in deep
        learning](https://proceedings.mlr.press/v28/sutskever13.html), 2013.
    """

    decay: Number = number(0.9)
    nesterov: bool = eqx.field(static=True, default=False)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return TraceState(trace=zeros_in(p, self.accumulator_dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        v = self.decay * s.trace + g
        u = self.decay * v + g if self.nesterov else v
        return u, TraceState(trace=v)


class EmaState(AbstractState):
    """State of `Ema`: step count, and the average without bias correction."""

    optax_fields = ("count", "ema")

    ema: PyTree = like_params(moment=1.0)
    count: Shared[Count] = counter()


class Ema(AbstractLeafwise[EmaState]):
    r"""Exponential moving average of the updates.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    u_t &= m_t / (1 - \beta^t) \quad\text{or, without bias correction,}\quad u_t = m_t
    \end{aligned}
    $$

    Args:
        decay: exponential decay rate $\beta$ of the average.
        debias: whether to correct the bias of the start at zero.
        accumulator_dtype: dtype of the average $m$; by default that of the parameters.
    """

    decay: Number = required_number(needs=DECAY)
    debias: bool = eqx.field(static=True, default=True)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return EmaState(ema=zeros_in(p, self.accumulator_dtype))

    def prepare(self, count):
        return bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        m = moment(self.decay, s.ema, g)
        u = m / now if self.debias else m
        return u, EmaState(ema=m)


class ApplyEveryState(AbstractState):
    """State of `ApplyEvery`: number of updates since the sum was last released, and the sum."""

    optax_fields = ("count", "grad_acc")

    grad_acc: PyTree = like_params(exact=True)
    # The count starts again after every sum, so that no schedule can follow it.
    count: Shared[Count] = counter(steps=False)


class _Turn(NamedTuple):
    begins: Bool[Array, ""]
    ends: Bool[Array, ""]
    count: Any


class ApplyEvery(AbstractLeafwise[ApplyEveryState]):
    r"""Accumulates updates and releases their sum every $k$ steps; all other updates are zero.

    $$
    \begin{aligned}
    a_t &= g_t \quad\text{at the first of } k \text{ steps, otherwise}\quad a_t = a_{t-1} + g_t \\
    u_t &= a_t \quad\text{at the last of } k \text{ steps, otherwise}\quad u_t = 0
    \end{aligned}
    $$

    The other transforms in a chain run at every step, on each update before this one and on the sum or zeros after it.
    To accumulate gradients into one large batch for an optimizer, use `MultiSteps`. A sum with an infinity or a NaN is
    released once; the next sum starts from zero.

    Args:
        k: number of updates in a sum.
    """

    k: Number = number(1, needs=WHOLE)

    def init_leaf(self, p):
        return ApplyEveryState(grad_acc=zeros_in(p, at_least_float32(p.dtype)))

    def prepare(self, count):
        n = count + 1
        ends = n >= self.k
        return _Turn(begins=count == 0, ends=ends, count=jnp.where(ends, 0, n))

    def update_leaf(self, now, g, s, p):
        del p
        # Chosen, not multiplied by zero: an infinity in the last sum would make this one NaN.
        total = s.grad_acc + g
        acc = jnp.where(now.begins, typed_like(g, total), total)
        u = jnp.where(now.ends, acc, jnp.zeros_like(acc))
        return u, ApplyEveryState(grad_acc=acc)
