"""The optimizers QHM and QHAdam."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, FRACTION
from .._transforms.quasi_hyperbolic import ScaleByQHAdam, ScaleByQHM
from .._transforms.scaling import ScaleByLearningRate
from .decayed import decayed


class QHM(AbstractOptimizer):
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

    learning_rate: Hyperparameter = required_number()
    momentum: Hyperparameter = number(0.999, needs=DECAY)
    nu: Hyperparameter = number(0.7)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            ScaleByQHM(self.momentum, self.nu, self.accumulator_dtype), ScaleByLearningRate(self.learning_rate)
        )


class QHAdam(AbstractOptimizer):
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
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Ma and Yarats, [Quasi-hyperbolic momentum and Adam for deep learning](https://arxiv.org/abs/1810.06801), 2018.
    """

    learning_rate: Hyperparameter = number(1e-3)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    nu1: Hyperparameter = number(1.0)
    nu2: Hyperparameter = number(1.0, needs=FRACTION)
    eps: Hyperparameter = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, ScaleByQHAdam(self.b1, self.b2, self.nu1, self.nu2, self.eps, self.mu_dtype))
