"""The optimizer FOCUS."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.focus import ScaleByFOCUS
from .._transforms.scaling import ScaleByLearningRate


class FOCUS(AbstractOptimizer):
    r"""Signum that also pulls the parameters towards their average, for noisy gradients in sharp valleys.

        optimizer = FOCUS(1e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    \bar w_t &= \bar w_{t-1} + \frac{1 - \beta_2}{1 - \beta_2^t} (w_t - \bar w_{t-1}) \\
    w_{t+1} &= w_t - \eta \left( \operatorname{sign}(m_t) + \gamma \operatorname{sign}(w_t - \bar w_t)
        + \lambda \bar w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = 0$. $\bar w_t$ is the exponential moving average
    with bias correction, $\bar w_1 = w_1$. The weight decay is that of the average.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the average.
        gamma: strength $\gamma$ of the attraction.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Liu, Liu and Gore, [FOCUS: First Order Concentrated Updating Scheme](https://arxiv.org/abs/2501.12243), 2025,
        and the authors' [code](https://github.com/liuyz0/FOCUS).
    """

    learning_rate: Hyperparameter = number(0.01)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    gamma: Hyperparameter = number(0.1)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(
            ScaleByFOCUS(self.b1, self.b2, self.gamma, self.mu_dtype, weight_decay=self.weight_decay, mask=self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
