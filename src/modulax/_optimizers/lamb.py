"""The optimizer LAMB."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.trust_ratio import ScaleByTrustRatio


class LAMB(AbstractOptimizer):
    r"""AdamW with layer-wise trust ratios, for large-batch training.

        optimizer = LAMB(1e-2, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon) + \lambda w_t \\
    w_{t+1} &= w_t - \eta \frac{\|w_t\|}{\|u_t\|} u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. The norms are those of one array; where
    one of them is zero, the ratio is 1.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$; the decay takes part in the trust ratio.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        You et al., [Large Batch Optimization for Deep Learning: Training BERT in 76
        minutes](https://arxiv.org/abs/1904.00962), 2019.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByTrustRatio(),
            ScaleByLearningRate(self.learning_rate),
        )
