"""AdaBelief: Adam with the variance of the gradient around its first moment in the denominator."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from .adam import adam_numbers, corrected_mean


class ScaleByBeliefState(AbstractState):
    """State of `ScaleByBelief`: step count, first moment `mu`, and variance `nu` around it."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu")

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByBelief(AbstractLeafwise[ScaleByBeliefState]):
    r"""Divides the first moment by the standard deviation of the updates around it: the direction of AdaBelief.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{s_t / (1 - \beta_2^t)} + \varepsilon}
    \end{aligned}
    $$

    Steps are long where updates agree with their first moment. Since $\bar\varepsilon$ is added to $s_t$ at every step,
    its contribution under the root tends to $\bar\varepsilon / (1 - \beta_2)$. With `nesterov`, the numerator is that
    of `ScaleByAdam(nesterov=True)`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        nesterov: whether to use Nesterov momentum.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

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
        # Added to the stored variance, as in the paper, and not under the root alone.
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(g - mu), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        u = mu_hat / (self.eps + safe_sqrt(nu / now.bias2))
        return u, ScaleByBeliefState(mu=mu, nu=nu)
