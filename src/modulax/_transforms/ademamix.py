"""AdEMAMix: a fast and a slow momentum together."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count


class ScaleByAdEMAMixState(AbstractState):
    """The state of `ScaleByAdEMAMix`: the number of steps done, the fast and the slow mean, and the mean square."""

    m1: PyTree
    m2: PyTree
    nu: PyTree
    count: Count | None = counter()


class ScaleByAdEMAMix(AbstractLeafwise):
    r"""AdEMAMix's direction: Adam's, with a second mean that remembers much longer.

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (\hat m_{1,t} + \alpha m_{2,t}) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The slow mean is not corrected for its start at zero: it shall grow slowly. The paper raises $\alpha$ and
    $\beta_3$ by schedules, which here may stand in their fields; the first step takes them at 0.

    Args:
        b1: the decay $\beta_1$ of the fast mean.
        b2: the decay $\beta_2$ of the mean square.
        b3: the decay $\beta_3$ of the slow mean.
        alpha: the weight $\alpha$ of the slow mean.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        mu_dtype: the dtype of both means; by default the parameter's. The mean square is at least float32.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    cites: ClassVar[tuple[str, ...]] = ("pagliardini2024",)

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
        u = (m1 / bias1 + self.alpha * m2) / (self.eps + safe_sqrt(self.eps_root + nu / bias2))
        return u, ScaleByAdEMAMixState(m1=m1, m2=m2, nu=nu)


class ScaleBySimplifiedAdEMAMixState(AbstractState):
    """The state of `ScaleBySimplifiedAdEMAMix`: the number of steps done, the momentum and the mean square."""

    m: PyTree
    n: PyTree
    count: Count | None = counter()


class ScaleBySimplifiedAdEMAMix(AbstractLeafwise):
    r"""AdEMAMix with one momentum instead of two means.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (m_t + \alpha g_t) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The momentum is a sum, not a mean, so the learning rate must be about $1 - \beta_1$ times that of Adam.

    Args:
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay $\beta_2$ of the mean square.
        alpha: the weight $\alpha$ of the newest update.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    cites: ClassVar[tuple[str, ...]] = ("morwani2025",)

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
