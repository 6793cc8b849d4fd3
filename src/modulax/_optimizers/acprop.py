"""The optimizer ACProp."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.acprop import ScaleByACProp
from .decayed import decayed


class ACProp(AbstractOptimizer):
    r"""Adam-like optimizer that divides each gradient by the deviation of the previous ones, for noisy training.

        optimizer = ACProp(1e-3, eps=1e-4)

    $$
    \begin{aligned}
    u_1 &= g_1, \qquad u_t = g_t / (\sqrt{\hat s_{t-1}} + \varepsilon), \quad
        \hat s_{t-1} = s_{t-1} / (1 - \beta_2^{t-1}) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = s_0 = 0$. The authors' code computes the same with
    `rectify=False`, and with `rectified` what it does by default; see `ScaleByACProp`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the denominator outside the root. Models with ReLUs need about 1e-4, see
            `ScaleByACProp`.
        eps_root: $\bar\varepsilon$, added to the variance at every step.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"`, or `"optax"`, which measures the deviation from $m_{t-1}$ instead of $m_t$, and divides
            $u_1$ by $1 + \varepsilon$.
        rectified: whether to rectify the steps as RAdam does, the default of the authors' code.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    _: KW_ONLY
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    follow: Follow = followed()
    rectified: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleByACProp))
