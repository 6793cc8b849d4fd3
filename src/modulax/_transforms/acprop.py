"""ACProp: centered second moments, one step behind the gradient."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, moment, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count, Follow


class ScaleByACPropState(AbstractState):
    """The state of `ScaleByACProp`: the number of steps done, the mean, and the variance about it."""

    mu: PyTree
    nu: PyTree
    count: Count | None = counter()


class ScaleByACProp(AbstractLeafwise):
    r"""ACProp's direction: the update over the standard deviation of those before it.

    $$
    \begin{aligned}
    u_t &= g_t / (\sqrt{\hat s_{t-1}} + \varepsilon), \qquad \hat s_{t-1} = s_{t-1} / (1 - \beta_2^{t-1}) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon
    \end{aligned}
    $$

    The denominator knows nothing of the update that it divides. In the first step $\hat s_0 = 1$.

    An entry whose updates were all alike, such as that of a unit that was dead so far, has next to no variance, and the
    first other update makes a step of millions. Models with such units need an $\varepsilon$ of 1e-4 or so; the default
    is the authors' and optax's.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the standard deviation.
        eps_root: $\bar\varepsilon$, added to the variance in every step.
        follow: `"paper"` measures the deviation from the new mean $m_t$, `"optax"` that from the old one, $m_{t-1}$,
            which makes it $1 / \beta_1$ times as large and the steps as much shorter.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021, and its [code](https://github.com/juntang-zhuang/ACProp-Optimizer).
    """

    cites: ClassVar[tuple[str, ...]] = ("zhuang2021",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-16)
    eps_root: Number = number(1e-16)
    follow: Follow = followed()

    def init_leaf(self, p):
        return ScaleByACPropState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return count == 0, bias(self.b2, jnp.maximum(count, 1))

    def update_leaf(self, now, g, s, p):
        del p
        is_first, bias2 = now
        u = g / (self.eps + jnp.where(is_first, 1, safe_sqrt(s.nu / bias2)))
        mu = moment(self.b1, s.mu, g)
        deviation = g - (mu if self.follow == "paper" else s.mu)
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(deviation))
        return u, ScaleByACPropState(mu=mu, nu=nu)
