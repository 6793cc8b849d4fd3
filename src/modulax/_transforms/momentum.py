"""Sums and averages of the updates: momentum, the exponential moving average, the sum of several."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import at_least_float32, bias, moment, zeros_in
from .._support.checks import AT_LEAST_ONE, DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count


class TraceState(AbstractState):
    """The state of `Trace`: the accumulated updates."""

    trace: PyTree


class Trace(AbstractLeafwise):
    r"""Momentum: adds the decayed sum of past updates.

    $$
    \begin{aligned}
    v_t &= g_t + \mu v_{t-1} \\
    u_t &= v_t \quad\text{or, with Nesterov's look-ahead,}\quad u_t = g_t + \mu v_t
    \end{aligned}
    $$

    It is the sum, not the average (`Ema`), so the steady step is $1/(1-\mu)$ times as long.

    Args:
        decay: the momentum $\mu$.
        nesterov: whether to look ahead.
        accumulator_dtype: the dtype of $v$; by default the parameter's.

    References:
        Polyak, [Some methods of speeding up the convergence of iteration
        methods](https://doi.org/10.1016/0041-5553(64)90137-5), 1964;
        Sutskever et al., [On the importance of initialization and momentum in deep
        learning](https://proceedings.mlr.press/v28/sutskever13.html), 2013.
    """

    cites: ClassVar[tuple[str, ...]] = ("polyak1964",)

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
    """The state of `Ema`: the number of steps done and the average so far, without bias correction."""

    ema: PyTree
    count: Count | None = counter()


class Ema(AbstractLeafwise):
    r"""The exponential moving average of the updates.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    u_t &= m_t / (1 - \beta^t) \quad\text{(or } m_t \text{, without correction)}
    \end{aligned}
    $$

    Args:
        decay: the decay $\beta$.
        debias: whether to correct for the start at zero.
        accumulator_dtype: the dtype of $m$; by default the parameter's.
    """

    decay: Number = number(needs=DECAY)
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
    """The state of `ApplyEvery`: the number of updates since it last let some through, and their sum."""

    grad_acc: PyTree
    count: Count | None = counter(steps=False)


class _Turn(NamedTuple):
    begins: Bool[Array, ""]
    ends: Bool[Array, ""]
    since: Float[Array, ""]


class ApplyEvery(AbstractLeafwise):
    r"""Holds the updates back, and lets the sum of $k$ of them through at every $k$-th step.

    $$
    \begin{aligned}
    a_t &= g_t \quad\text{at the first of } k \text{ steps, else}\quad a_t = a_{t-1} + g_t \\
    u_t &= a_t \quad\text{at the last of } k \text{ steps, else}\quad u_t = 0
    \end{aligned}
    $$

    In a chain the other transforms run at every step, on each update or on zeros. To give a transform one large batch
    in small parts, use `MultiSteps`. A sum with an infinity or a NaN in it comes through once; the next begins anew.

    Args:
        k: how many updates make a step.
    """

    k: Number = number(1, needs=AT_LEAST_ONE)

    def init_leaf(self, p):
        return ApplyEveryState(grad_acc=zeros_in(p, at_least_float32(p.dtype)))

    def prepare(self, count):
        n = count + 1
        ends = n >= self.k
        return _Turn(begins=count == 0, ends=ends, since=jnp.where(ends, 0, n))

    def share(self, now):
        return {"count": now.since}

    def update_leaf(self, now, g, s, p):
        del p
        acc = jnp.where(now.begins, g, s.grad_acc + g)
        u = jnp.where(now.ends, acc, jnp.zeros_like(acc))
        return u, ApplyEveryState(grad_acc=acc)
