"""AdEMAMix: Adam with a fast and a slow moving average of the gradients, and its variant with a single buffer."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared


class ScaleByAdEMAMixState(AbstractState):
    """State of `ScaleByAdEMAMix`: step count, fast and slow first moments `m1` and `m2`, second moment `nu`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "count_m2=count", "m1", "m2", "nu")

    m1: PyTree = like_params(moment=1.0)
    m2: PyTree = like_params()
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByAdEMAMix(AbstractLeafwise[ScaleByAdEMAMixState]):
    r"""Adds a second, slow moving average of the updates to Adam's first moment: the direction of AdEMAMix.

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (\hat m_{1,t} + \alpha m_{2,t}) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The slow moment has no bias correction, so that its influence grows slowly. The paper increases $\alpha$ and
    $\beta_3$ by schedules: pass them as `alpha` and `b3`. They are called with 0 at the first step.

    Args:
        b1: exponential decay rate $\beta_1$ of the fast first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the slow first moment.
        alpha: weight $\alpha$ of the slow first moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of both first moments; by default that of the parameters. The second moment is stored in at
            least float32.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    b3: Number = number(0.9999, needs=DECAY)
    alpha: Number = number(6.0)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        m1, m2 = (zeros_in(p, self.mu_dtype) for _ in range(2))
        return ScaleByAdEMAMixState(m1=m1, m2=m2, nu=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b1, count + 1), bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        bias1, bias2 = now
        m1 = moment(self.b1, s.m1, g)
        m2 = moment(self.b3, s.m2, g)
        nu = moment(self.b2, s.nu, abs_sq(g))
        # `m2` has no bias correction, as in the paper: the slow average is to grow slowly.
        u = (m1 / bias1 + self.alpha * m2) / (self.eps + safe_sqrt(self.eps_root + nu / bias2))
        return u, ScaleByAdEMAMixState(m1=m1, m2=m2, nu=nu)


class ScaleBySimplifiedAdEMAMixState(AbstractState):
    """State of `ScaleBySimplifiedAdEMAMix`: step count, momentum `m`, second moment `n`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("t=count", "m", "n")

    m: PyTree = like_params(moment=lambda rule: 1 - rule.b1)
    n: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleBySimplifiedAdEMAMix(AbstractLeafwise[ScaleBySimplifiedAdEMAMixState]):
    r"""Momentum plus the current update, over the root of the second moment: AdEMAMix with a single momentum buffer.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (m_t + \alpha g_t) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The momentum is a sum, not an average, so the learning rate has to be about $1 - \beta_1$ times that of Adam.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        alpha: weight $\alpha$ of the current update.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    b1: Number = number(0.99, needs=DECAY)
    b2: Number = number(0.95, needs=DECAY)
    alpha: Number = number(0.0)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)

    def init_leaf(self, p):
        return ScaleBySimplifiedAdEMAMixState(m=jnp.zeros_like(p), n=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        m = self.b1 * s.m + g
        n = moment(self.b2, s.n, abs_sq(g))
        u = (self.alpha * g + m) / (self.eps + safe_sqrt(self.eps_root + n / now))
        return u, ScaleBySimplifiedAdEMAMixState(m=m, n=n)
