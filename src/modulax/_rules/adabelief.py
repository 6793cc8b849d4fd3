"""AdaBelief: Adam with the variance of the gradient around its first moment in the denominator."""

import jax.numpy as jnp

from .. import authoring as ma
from .adam import AbstractAdamRule, corrected_mean


class ScaleByBeliefState(ma.AbstractState):
    """State of `ScaleByBelief`: step count, first moment `mu`, and variance `nu` around it."""

    optax_fields = ("count", "mu", "nu")

    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractBelief(ma.AbstractMoments):
    r"""The hyperparameters of AdaBelief.

    Args:
        b2: exponential decay rate $\beta_2$ of the variance.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
    """

    eps: ma.Number = ma.number(1e-16)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(1e-16)


class ScaleByBelief(ma.AbstractNesterov, AbstractBelief, AbstractAdamRule[ScaleByBeliefState]):
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

    def init_leaf(self, p):
        return ScaleByBeliefState(mu=jnp.zeros_like(p), nu=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        # Added to the stored variance, as in the paper, and not under the root alone.
        nu = self.eps_root + ma.moment(self.b2, s.nu, ma.abs_sq(g - mu), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        u = mu_hat / (self.eps + ma.safe_sqrt(nu / now.bias2))
        return u, ScaleByBeliefState(mu=mu, nu=nu)


class AdaBelief(ma.AbstractNesterov, AbstractBelief, ma.AbstractRated):
    r"""Adam that divides by the deviation of the gradient from its moving average, not by its root mean square.

        optimizer = AdaBelief(1e-3, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat s_t = s_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_t}{\sqrt{\hat s_t} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = s_0 = 0$. The authors' package computes the same
    with `rectify=False`; by default it rectifies the steps as RAdam does. With `nesterov`,
    $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        nesterov: whether to use Nesterov momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate; None for no weight decay.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    direction = ScaleByBelief
    _: ma.KW_ONLY
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)
    mask: ma.Mask = ma.mask()

    def decays(self):
        return [] if self.weight_decay is None else [ma.AddDecayedWeights(self.weight_decay, self.mask)]
