"""Yogi: Adam with additive changes of the second moment."""

import jax.numpy as jnp

from .. import authoring as ma
from .._support.types import FollowReference
from .adam import AbstractAdamRule, ScaleByAdamState


class AbstractYogi(ma.AbstractMoments):
    r"""The hyperparameters of Yogi.

    Args:
        b2: $\beta_2$; the second moment changes by $1 - \beta_2$ times the new square.
        follow: `"reference"`, the authors' code; `"paper"` for no bias corrections, or `"optax"` for those of $v_t$
            inside the root.
    """

    eps: ma.Number = ma.number(1e-3)
    _: ma.KW_ONLY
    follow: FollowReference = ma.followed("reference", "paper", "optax")


class ScaleByYogi(AbstractYogi, AbstractAdamRule[ScaleByAdamState]):
    r"""Adam's direction with a second moment that changes by at most the new square: the direction of Yogi.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= v_{t-1} - (1 - \beta_2) \operatorname{sign}(v_{t-1} - |g_t|^2)\, |g_t|^2 \\
    u_t &= \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \cdot \frac{m_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    with $m_0 = 0$.

    Where Adam's second moment is much larger than the new square, it decays like $\beta_2^t$. Yogi's decreases by steps
    of the size of the new square, so that the effective learning rate doesn't increase suddenly.

    The paper, the authors' code and optax differ. Algorithm 2 of the paper, and so `follow="paper"`, has no bias
    corrections. optax corrects $v_t$ inside the root, so that $\varepsilon$ isn't corrected, and starts $m$ at the
    initial value of $v$; so does `follow="optax"`:

    $$
    u_t = \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t) + \bar\varepsilon} + \varepsilon}, \qquad m_0 = v_0
    $$

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: $\beta_2$; the second moment changes by $1 - \beta_2$ times the new square.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        initial_accumulator_value: initial value $v_0$ of $v$.
        follow: `"reference"`, the authors' code; `"paper"` for no bias corrections, or `"optax"` for those of $v_t$
            inside the root.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018, and its
        first author's [code](https://github.com/tensorflow/addons/blob/master/tensorflow_addons/optimizers/yogi.py).
    """

    eps_root: ma.Number = ma.number(0.0)
    initial_accumulator_value: ma.Number = ma.number(1e-6, needs=ma.NON_NEGATIVE)

    def init_leaf(self, p):
        start = ma.at_start(self.initial_accumulator_value)
        # optax starts the first moment at this value too.
        mu = jnp.full_like(p, start) if self.follow == "optax" else jnp.zeros_like(p)
        return ScaleByAdamState(mu=mu, nu=ma.second_moment_like(p, start))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        square = ma.abs_sq(g)
        change = now.c2 * square
        # By comparison instead of the sign of a difference, which is NaN if both have overflowed.
        nu = jnp.where(square > s.nu, s.nu + change, jnp.where(square < s.nu, s.nu - change, s.nu))
        if self.follow == "optax":
            u = mu / now.bias1 / (self.eps + ma.safe_sqrt(self.eps_root + nu / now.bias2))
        else:
            factor = ma.safe_sqrt(now.bias2) / now.bias1 if self.follow == "reference" else 1
            u = factor * mu / (self.eps + ma.safe_sqrt(self.eps_root + nu))
        return u, ScaleByAdamState(mu=mu, nu=nu)


class Yogi(AbstractYogi, ma.AbstractRated):
    r"""Adam with additive changes of the second moment, so that the effective learning rate can't increase suddenly.

        optimizer = Yogi(1e-2)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= v_{t-1} - (1 - \beta_2) \operatorname{sign}(v_{t-1} - |g_t|^2)\, |g_t|^2 \\
    w_{t+1} &= w_t - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \cdot \frac{m_t}{\sqrt{v_t} + \varepsilon}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, $m_0 = 0$ and $v_0 = 10^{-6}$. With
    `follow="paper"`, there is no bias correction: $w_{t+1} = w_t - \eta\, m_t / (\sqrt{v_t} + \varepsilon)$. With
    `follow="optax"`, $v_t$ is corrected inside the root and $m_0 = 10^{-6}$:

    $$
    w_{t+1} = w_t - \eta \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
    $$

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: $\beta_2$; the second moment changes by $1 - \beta_2$ times the new square.
        eps: $\varepsilon$, added to the denominator outside the root.
        follow: `"reference"`, the authors' code; `"paper"` for no bias corrections, or `"optax"` for those of $v_t$
            inside the root.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018, and its
        first author's [code](https://github.com/tensorflow/addons/blob/master/tensorflow_addons/optimizers/yogi.py).
    """

    direction = ScaleByYogi
