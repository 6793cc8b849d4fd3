"""The optimizer SM3."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.sm3 import ScaleBySM3


class SM3(AbstractOptimizer):
    r"""Memory-efficient Adagrad: one sum of squared gradients per row and column instead of one per entry.

        optimizer = SM3(0.1)

    $$
    \begin{aligned}
    \nu_t(i) &= \min_{a} \mu_{t-1}^a(i_a) + g_t(i)^2, \qquad
    \mu_t^a(k) = \max_{i: i_a = k} \nu_t(i) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t / \sqrt{\nu_t + 10^{-8}} \\
    w_{t+1} &= w_t - \eta\, m_t
    \end{aligned}
    $$

    for the entry at index $i = (i_1, \dots, i_d)$ of an array with axes $a = 1, \dots, d$, with $g_t$ the gradient at
    $w_t$, and sums $\mu^a$ and momentum $m$ started from zero.

    State: $4 (n_1 + \dots + n_d)$ bytes of sums for a parameter of shape $n_1 \times \dots \times n_d$, where Adagrad
    needs 4 bytes per entry, in addition to the momentum, which is as large as the parameter.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: exponential decay rate $\beta_1$ of the momentum.

    References:
        Anil et al., [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150), 2019.
    """

    learning_rate: Hyperparameter = required_number()
    momentum: Hyperparameter = number(0.9, needs=DECAY)

    def transform(self) -> Chain:
        return Chain(ScaleBySM3(self.momentum), ScaleByLearningRate(self.learning_rate))
