"""ACProp: gradients divided by the standard deviation of the gradients before them."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, moment, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Follow, Shared
from .radam import rectification


class ScaleByACPropState(AbstractState):
    """State of `ScaleByACProp`: step count, first moment `mu`, and variance `nu` around it."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu")
    optax_forms: ClassVar[tuple[str, ...]] = ("nu",)

    mu: PyTree = like_params(moment=1.0)
    # The deviation from the new first moment is `b1` times that from the previous one.
    nu: PyTree = like_params(
        nonnegative=True,
        form=lambda rule: rule.follow,
        scale=lambda rule, state: 1 if rule.follow == "paper" else rule.b1**2,
    )
    count: Shared[Count] = counter()


class ScaleByACProp(AbstractLeafwise[ScaleByACPropState]):
    r"""Divides the update by the standard deviation of the previous updates: the direction of ACProp.

    $$
    \begin{aligned}
    u_1 &= g_1, \qquad u_t = g_t / (\sqrt{\hat s_{t-1}} + \varepsilon), \quad
        \hat s_{t-1} = s_{t-1} / (1 - \beta_2^{t-1}) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon
    \end{aligned}
    $$

    The denominator doesn't depend on the update it divides (asynchronous update), and the variance is taken around the
    first moment (centering). The first moment appears nowhere else.

    The variance of an entry whose updates have all been equal, for example that of a ReLU unit that was inactive so
    far, is almost zero, and the first different update then makes a step of the order of $10^6$. For models with such
    units set `eps` to about 1e-4; the default is that of the authors and of optax.

    The authors' code rectifies the steps as RAdam does, unless it is called with `rectify=False`, as in their
    experiments; the paper doesn't. With `rectified`, and $r_t$, $\rho_t$ of `ScaleByRAdam`, after the first step

    $$
    u_t = r_t \sqrt{1 - \beta_2^t}\, g_t / (\sqrt{s_{t-1}} + \varepsilon)
    \quad\text{if } \rho_t \ge 5, \text{ otherwise}\quad m_t / (1 - \beta_1^t)
    $$

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        follow: `"paper"` measures the deviation from the new first moment $m_t$; `"optax"` from the previous one,
            $m_{t-1}$, which is $1 / \beta_1$ times as large and makes steps shorter by the same factor, and divides
            the first update by $1 + \varepsilon$.

        rectified: whether to rectify the steps.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021, and its [code](https://github.com/juntang-zhuang/ACProp-Optimizer).
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-16)
    eps_root: Number = number(1e-16)
    follow: Follow = followed()
    rectified: bool = eqx.field(static=True, default=False, kw_only=True)

    def init_leaf(self, p):
        return ScaleByACPropState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        # The variance of the steps before this one; at the first step there is none, and the correction would be zero.
        t = count + 1
        rectified = None
        if self.rectified:
            is_long, factor = rectification(self.b2, t, 5)
            rectified = is_long, factor * jnp.sqrt(bias(self.b2, t)), bias(self.b1, t)
        return count == 0, bias(self.b2, jnp.maximum(count, 1)), rectified

    def update_leaf(self, now, g, s, p):
        del p
        is_first, bias2, rectified = now
        # The variance is exactly zero before the first step, where the derivative of `jnp.sqrt` is infinite.
        root = safe_sqrt(s.nu / bias2)
        if self.follow == "paper":
            # A quotient by `eps` alone could overflow, and the derivative of an unused quotient must be finite too.
            u = g / jnp.where(is_first, 1, self.eps + root)
        else:
            u = g / (self.eps + jnp.where(is_first, 1, root))
        mu = moment(self.b1, s.mu, g)
        if rectified is not None:
            is_long, factor, bias1 = rectified
            adaptive = factor * g / jnp.where(is_first, 1, self.eps + safe_sqrt(s.nu))
            u = jnp.where(is_long, adaptive, mu / bias1)  # the first step is never long enough
        deviation = g - (mu if self.follow == "paper" else s.mu)
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(deviation))
        return u, ScaleByACPropState(mu=mu, nu=nu)
