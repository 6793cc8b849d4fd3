"""StableAdamW: AdamW with update clipping."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, NON_NEGATIVE
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.stable_adam import ScaleByStableAdam


class StableAdamW(AbstractOptimizer):
    r"""AdamW with the update clipping of Adafactor, which prevents loss spikes without gradient clipping.

        optimizer = StableAdamW(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \operatorname{RMS}_t^2 &= \frac{1}{n} \sum_{i=1}^n \frac{|g_{t,i}|^2}{\max(\hat v_{t,i}, \varepsilon^2)} \\
    \eta_t &= \eta / \max(1, \operatorname{RMS}_t / d) \\
    w_{t+1} &= w_t - \eta_t \left( \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. After a sudden change of the gradient,
    $v_t$ is too small for a while, and the step of AdamW is too large; $\operatorname{RMS}_t$, of each array on its
    own, measures by how much. The reduced learning rate $\eta_t$ is that of the weight decay too.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        clip_threshold: $d$, the largest root mean square of the gradient over the root of its second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the reduced learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Wortsman et al., [Stable and low-precision training for large-scale vision-language
        models](https://arxiv.org/abs/2304.13013), 2023.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    clip_threshold: Hyperparameter = number(1.0, needs=NON_NEGATIVE)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-2)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByStableAdam), ScaleByLearningRate(self.learning_rate))
