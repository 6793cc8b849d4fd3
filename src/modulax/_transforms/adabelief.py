"""AdaBelief: the variance of the gradient around its momentum."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count
from .adam import adam_numbers, corrected_mean


class ScaleByBeliefState(AbstractState):
    """The state of `ScaleByBelief`: the steps done, the mean of the updates, and how far they are from it."""

    mu: PyTree
    nu: PyTree
    count: Count | None = counter()


class ScaleByBelief(AbstractLeafwise):
    r"""AdaBelief's direction: the mean of the updates over their typical distance from it.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{s_t / (1 - \beta_2^t)} + \varepsilon}
    \end{aligned}
    $$

    Steps are long where the updates are as expected. $\bar\varepsilon$ is added to the state at every step, so that in
    the long run $\bar\varepsilon / (1 - \beta_2)$ stands under the root. With `nesterov`, the mean looks ahead as in
    `ScaleByAdam`.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the squared distance.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, accumulated inside the root.
        nesterov: whether to look ahead.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    cites: ClassVar[tuple[str, ...]] = ("zhuang2020",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-16)
    eps_root: Number = number(1e-16)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def init_leaf(self, p):
        return ScaleByBeliefState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(g - mu), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        u = mu_hat / (self.eps + safe_sqrt(nu / now.bias2))
        return u, ScaleByBeliefState(mu=mu, nu=nu)
