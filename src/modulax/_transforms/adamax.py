"""Adamax: Adam with the infinity norm in place of the second moment."""

import jax.numpy as jnp

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import bias, infinity_moment, moment, second_moment_like
from .._support.checks import DECAY
from .adam import ScaleByAdamState


class ScaleByAdamax(AbstractLeafwise[ScaleByAdamState]):
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

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b1, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g)
        nu = infinity_moment(self.b2, s.nu, g, self.eps)
        # `nu` is at least `eps`, so that the quotient is finite for an entry without gradients.
        u = mu / now / nu
        return u, ScaleByAdamState(mu=mu, nu=nu)
