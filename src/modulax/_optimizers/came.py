"""The optimizer CAME."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, NON_NEGATIVE
from .._transforms.came import ScaleByCAME
from .decayed import decayed


class CAME(AbstractOptimizer):
    r"""Adafactor with a confidence-guided momentum: entries whose updates disagree with it take smaller steps.

        optimizer = CAME(2e-4, weight_decay=0.01)

    For a matrix:

    $$
    \begin{aligned}
    V_t &= \beta_2 V_{t-1} + (1 - \beta_2) (|g_t|^2 + \varepsilon) \\
    \hat u_t &= g_t / \sqrt{V_t}, \qquad u_t = \hat u_t / \max(1, \operatorname{RMS}(\hat u_t) / d) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) u_t \\
    S_t &= \beta_3 S_{t-1} + (1 - \beta_3) (|u_t - m_t|^2 + \varepsilon_S) \\
    w_{t+1} &= w_t - \eta (m_t / \sqrt{S_t} + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = V_0 = S_0 = 0$. Of $V$ and $S$, the means $R$ of rows and $C$ of columns
    are stored, which approximate them by $R C / \operatorname{mean}(R)$. In an array with more than two axes, the last
    two form the matrices. For a scalar and a vector, $V$ is stored in full, and the step is $\eta m_t$.

    Its authors take the betas of AdamW for $\beta_1$ and $\beta_2$, a larger $\beta_3$, and 0.5 to 0.9 times the
    learning rate of AdamW.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the instability.
        eps: $\varepsilon$, added to the squared gradients.
        instability_eps: $\varepsilon_S$, added to the squared differences between update and momentum.
        clip_threshold: $d$, the largest root mean square of an update.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Luo et al., [CAME: Confidence-guided Adaptive Memory Efficient
        Optimization](https://arxiv.org/abs/2307.02047), 2023, and the authors'
        [code](https://github.com/yangluo7/CAME).
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    b3: Hyperparameter = number(0.9999, needs=DECAY)
    eps: Hyperparameter = number(1e-30)
    instability_eps: Hyperparameter = number(1e-16)
    clip_threshold: Hyperparameter = number(1.0, needs=NON_NEGATIVE)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    _: KW_ONLY
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleByCAME))
