"""The optimizers Adamax and AdamaxW."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adamax import ScaleByAdamax
from .._transforms.scaling import ScaleByLearningRate
from .decayed import decayed


class Adamax(AbstractOptimizer):
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

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)

    def transform(self) -> Chain:
        return Chain(ScaleByAdamax(self.b1, self.b2, self.eps), ScaleByLearningRate(self.learning_rate))


class AdamaxW(AbstractOptimizer):
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

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, ScaleByAdamax(self.b1, self.b2, self.eps))
