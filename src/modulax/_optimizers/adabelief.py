"""The optimizer AdaBelief."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adabelief import ScaleByBelief
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class AdaBelief(AbstractOptimizer):
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
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate; None for no weight decay.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to use Nesterov momentum.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    _: KW_ONLY
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        belief = ScaleByBelief(self.b1, self.b2, self.eps, self.eps_root, nesterov=self.nesterov)
        decay = [] if self.weight_decay is None else [AddDecayedWeights(self.weight_decay, self.mask)]
        return Chain(belief, *decay, ScaleByLearningRate(self.learning_rate))
