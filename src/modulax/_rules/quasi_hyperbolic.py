"""Quasi-hyperbolic momentum: averages of a momentum and the gradient itself, for QHM and QHAdam."""

from .. import authoring as ma
from .._support.arithmetic import without_infinities
from .adam import AbstractAdamRule, ScaleByAdamState


class ScaleByQHMState(ma.AbstractState):
    """State of `ScaleByQHM`: the momentum."""

    mu: ma.PyTree = ma.like_params(moment=1.0)


class ScaleByQHM(ma.AbstractLeafwise[ScaleByQHMState]):
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

    decay: ma.Number = ma.number(0.999, needs=ma.DECAY)
    nu: ma.Number = ma.number(0.7)
    accumulator_dtype: ma.DTypeLike | None = ma.static(None)

    def init_leaf(self, p):
        return ScaleByQHMState(mu=ma.zeros_in(p, self.accumulator_dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        mu = ma.moment(self.decay, s.mu, g)
        return ma.moment(self.nu, mu, g), ScaleByQHMState(mu=mu)


class AbstractQHAdam(ma.AbstractFields):
    r"""The hyperparameters of QHAdam.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        nu1: weight $\nu_1$ of the first moment.
        nu2: weight $\nu_2$ of the second moment; below 1 it bounds the steps.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    nu1: ma.Number = ma.number(1.0)
    nu2: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    eps: ma.Number = ma.number(1e-8)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByQHAdam(AbstractQHAdam, AbstractAdamRule[ScaleByAdamState]):
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
        nu2: weight $\nu_2$ of the second moment; below 1 it bounds the steps.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    def init_leaf(self, p):
        return ScaleByAdamState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del p
        square = ma.abs_sq(g)
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        nu = ma.moment(self.b2, s.nu, square, now.c2)
        first = ma.moment(self.nu1, mu / now.bias1, g)
        # The square of a huge update is infinite, and has no weight by default.
        second = ma.moment(self.nu2, nu / now.bias2, without_infinities(square))
        return first / (self.eps + ma.safe_sqrt(second)), ScaleByAdamState(mu=mu, nu=nu)


class QHM(ma.AbstractRated):
    r"""SGD with quasi-hyperbolic momentum: each step is an average of a plain gradient step and a momentum step.

        optimizer = QHM(1.0, momentum=0.999, nu=0.7)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \left( (1 - \nu) g_t + \nu m_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$. The momentum is an average: multiply the learning rate of `SGD` with
    momentum by $1 / (1 - \beta)$. With $\nu = \beta$ it is then SGD with Nesterov momentum. For weight decay as in SGD,
    write `Chain(AddDecayedWeights(1e-4), QHM(1.0))`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: exponential decay rate $\beta$ of the momentum.
        nu: weight $\nu$ of the momentum.
        accumulator_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    momentum: ma.Number = ma.number(0.999, needs=ma.DECAY)
    nu: ma.Number = ma.number(0.7)
    accumulator_dtype: ma.DTypeLike | None = ma.static(None)

    def directions(self):
        return [self._part(ScaleByQHM, decay=self.momentum)]


class QHAdam(ma.AbstractDecayed, AbstractQHAdam, ma.AbstractRated):
    r"""Adam with quasi-hyperbolic moments: averages each moment with the current gradient, or its square.

        optimizer = QHAdam(1e-3, b1=0.995, nu1=0.7)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left(
        \frac{(1 - \nu_1) g_t + \nu_1 \hat m_t}{\sqrt{(1 - \nu_2) |g_t|^2 + \nu_2 \hat v_t} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. The default is Adam, as in the authors'
    code; they propose $\nu_1 = 0.7$ and $\beta_1 = 0.995$. Their weight decay is an $L_2$ penalty by default:
    `Chain(AddDecayedWeights(1e-4), QHAdam())`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        nu1: weight $\nu_1$ of the first moment.
        nu2: weight $\nu_2$ of the second moment; below 1 it bounds the steps.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    direction = ScaleByQHAdam
    learning_rate: ma.Number = ma.number(1e-3)
