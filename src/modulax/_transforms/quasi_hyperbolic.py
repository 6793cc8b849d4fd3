"""Quasi-hyperbolic momentum: averages of a momentum and the gradient itself, for QHM and QHAdam."""

import equinox as eqx
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like, without_infinities, zeros_in
from .._support.checks import DECAY, FRACTION
from .._support.module import AbstractState, like_params
from .adam import ScaleByAdamState, adam_numbers


class ScaleByQHMState(AbstractState):
    """State of `ScaleByQHM`: the momentum."""

    mu: PyTree = like_params(moment=1.0)


class ScaleByQHM(AbstractLeafwise[ScaleByQHMState]):
    r"""Averages a momentum and the update itself: quasi-hyperbolic momentum, the direction of QHM.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    u_t &= (1 - \nu) g_t + \nu m_t
    \end{aligned}
    $$

    The momentum is an average, not a sum as in `Trace`. With $\nu = \beta$ this is Nesterov momentum, with $\nu = 1$
    momentum, each with a learning rate that is $1 / (1 - \beta)$ times as large.

    Args:
        decay: exponential decay rate $\beta$ of the momentum.
        nu: weight $\nu$ of the momentum.
        accumulator_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    decay: Number = number(0.999, needs=DECAY)
    nu: Number = number(0.7)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return ScaleByQHMState(mu=zeros_in(p, self.accumulator_dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        mu = moment(self.decay, s.mu, g)
        return moment(self.nu, mu, g), ScaleByQHMState(mu=mu)


class ScaleByQHAdam(AbstractLeafwise[ScaleByAdamState]):
    r"""Averages the moments of Adam with the update and its square: the direction of QHAdam.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \frac{(1 - \nu_1) g_t + \nu_1 \hat m_t}{\sqrt{(1 - \nu_2) |g_t|^2 + \nu_2 \hat v_t} + \varepsilon}
    \end{aligned}
    $$

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        nu1: weight $\nu_1$ of the first moment.
        nu2: weight $\nu_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    nu1: Number = number(1.0)
    nu2: Number = number(1.0, needs=FRACTION)
    eps: Number = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        square = abs_sq(g)
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, square, now.c2)
        first = moment(self.nu1, mu / now.bias1, g)
        # The square of a huge update is infinite, and has no weight by default.
        second = moment(self.nu2, nu / now.bias2, without_infinities(square))
        return first / (self.eps + safe_sqrt(second)), ScaleByAdamState(mu=mu, nu=nu)
