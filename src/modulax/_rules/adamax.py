"""Adamax: Adam with the infinity norm in place of the second moment."""

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import infinity_moment
from .adam import ScaleByAdamState


class AbstractAdamax(ma.AbstractMoments):
    r"""The hyperparameters of Adamax.

    Args:
        b2: exponential decay rate $\beta_2$ of the maximum.
        eps: $\varepsilon$, added to the absolute values inside the maximum.
    """


class ScaleByAdamax(AbstractAdamax, ma.AbstractLeafwise[ScaleByAdamState]):
    r"""Divides the first moment by the decaying maximum of absolute updates: the direction of Adamax.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \max(\beta_2 v_{t-1}, |g_t| + \varepsilon) \\
    u_t &= m_t / ((1 - \beta_1^t)\, v_t)
    \end{aligned}
    $$

    The paper has no $\varepsilon$; it keeps $v_t$ positive where all updates have been zero.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the maximum.
        eps: $\varepsilon$, added to the absolute values inside the maximum.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
    """

    def init_leaf(self, p):
        return ScaleByAdamState(mu=jnp.zeros_like(p), nu=ma.second_moment_like(p))

    def prepare(self, count):
        return ma.bias(self.b1, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g)
        nu = infinity_moment(self.b2, s.nu, g, self.eps)
        # `nu` is at least `eps`, so that the quotient is finite for an entry without gradients.
        u = mu / now / nu
        return u, ScaleByAdamState(mu=mu, nu=nu)


class Adamax(AbstractAdamax, ma.AbstractRated):
    r"""Adam with the infinity norm: divides by a decaying maximum of past gradients instead of their root mean square.

        optimizer = Adamax(2e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \max(\beta_2 v_{t-1}, |g_t| + \varepsilon) \\
    w_{t+1} &= w_t - \frac{\eta}{1 - \beta_1^t}\, \frac{m_t}{v_t}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the maximum.
        eps: $\varepsilon$, added to the absolute values inside the maximum.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
    """

    direction = ScaleByAdamax


class AdamaxW(ma.AbstractDecayed, AbstractAdamax, ma.AbstractRated):
    r"""Adamax with decoupled weight decay.

        optimizer = AdamaxW(2e-3, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \max(\beta_2 v_{t-1}, |g_t| + \varepsilon) \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t}{(1 - \beta_1^t)\, v_t} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the maximum.
        eps: $\varepsilon$, added to the absolute values inside the maximum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    direction = ScaleByAdamax
    weight_decay: ma.Number = ma.number(1e-4)
