"""ACProp: gradients divided by the standard deviation of the gradients before them."""

import jax.numpy as jnp

from .. import authoring as ma
from .adabelief import AbstractBelief
from .radam import rectification


class ScaleByACPropState(ma.AbstractState):
    """State of `ScaleByACProp`: step count, first moment `mu`, and variance `nu` around it."""

    optax_fields = ("count", "mu", "nu")
    optax_forms = ("nu",)

    mu: ma.PyTree = ma.like_params(moment=1.0)
    # The deviation from the new first moment is `b1` times that from the previous one.
    nu: ma.PyTree = ma.like_params(
        nonnegative=True,
        form=lambda rule: rule.follow,
        scale=lambda rule, state: 1 if rule.follow == "paper" else rule.b1**2,
    )
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractACProp(AbstractBelief):
    r"""The hyperparameters of ACProp.

    Args:
        eps: $\varepsilon$, added to the denominator outside the root. Models with ReLUs need about 1e-4.
        follow: `"paper"` measures the deviation from the new first moment $m_t$; `"optax"` from the previous one,
            $m_{t-1}$, which is $1 / \beta_1$ times as large and makes steps shorter by the same factor, and divides
            the first update by $1 + \varepsilon$.
        rectified: whether to rectify the steps as RAdam does, the default of the authors' code.
    """

    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()
    rectified: bool = ma.static(False)


class ScaleByACProp(AbstractACProp, ma.AbstractLeafwise[ScaleByACPropState]):
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
        eps: $\varepsilon$, added to the denominator outside the root. Models with ReLUs need about 1e-4.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        follow: `"paper"` measures the deviation from the new first moment $m_t$; `"optax"` from the previous one,
            $m_{t-1}$, which is $1 / \beta_1$ times as large and makes steps shorter by the same factor, and divides
            the first update by $1 + \varepsilon$.
        rectified: whether to rectify the steps as RAdam does, the default of the authors' code.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021, and its [code](https://github.com/juntang-zhuang/ACProp-Optimizer).
    """

    def init_leaf(self, p):
        return ScaleByACPropState(mu=jnp.zeros_like(p), nu=ma.second_moment_like(p))

    def prepare(self, count):
        # The variance of the steps before this one; at the first step there is none, and the correction would be zero.
        t = count + 1
        rectified = None
        if self.rectified:
            is_long, factor = rectification(self.b2, t, 5)
            rectified = is_long, factor * jnp.sqrt(ma.bias(self.b2, t)), ma.bias(self.b1, t)
        return count == 0, ma.bias(self.b2, jnp.maximum(count, 1)), rectified

    def update_leaf(self, now, g, s, p):
        del p
        is_first, bias2, rectified = now
        # The variance is exactly zero before the first step, where the derivative of `jnp.sqrt` is infinite.
        root = ma.safe_sqrt(s.nu / bias2)
        if self.follow == "paper":
            # A quotient by `eps` alone could overflow, and the derivative of an unused quotient must be finite too.
            u = g / jnp.where(is_first, 1, self.eps + root)
        else:
            u = g / (self.eps + jnp.where(is_first, 1, root))
        mu = ma.moment(self.b1, s.mu, g)
        if rectified is not None:
            is_long, factor, bias1 = rectified
            adaptive = factor * g / jnp.where(is_first, 1, self.eps + ma.safe_sqrt(s.nu))
            u = jnp.where(is_long, adaptive, mu / bias1)  # the first step is never long enough
        deviation = g - (mu if self.follow == "paper" else s.mu)
        nu = self.eps_root + ma.moment(self.b2, s.nu, ma.abs_sq(deviation))
        return u, ScaleByACPropState(mu=mu, nu=nu)


class ACProp(ma.AbstractDecayedByName, AbstractACProp, ma.AbstractRated):
    r"""Adam-like optimizer that divides each gradient by the deviation of the previous ones, for noisy training.

        optimizer = ACProp(1e-3, eps=1e-4)

    $$
    \begin{aligned}
    u_1 &= g_1, \qquad u_t = g_t / (\sqrt{\hat s_{t-1}} + \varepsilon), \quad
        \hat s_{t-1} = s_{t-1} / (1 - \beta_2^{t-1}) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = s_0 = 0$. The authors' code computes the same with
    `rectify=False`, and with `rectified` what it does by default; see `ScaleByACProp`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the denominator outside the root. Models with ReLUs need about 1e-4.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        follow: `"paper"` measures the deviation from the new first moment $m_t$; `"optax"` from the previous one,
            $m_{t-1}$, which is $1 / \beta_1$ times as large and makes steps shorter by the same factor, and divides
            the first update by $1 + \varepsilon$.
        rectified: whether to rectify the steps as RAdam does, the default of the authors' code.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021.
    """

    direction = ScaleByACProp
