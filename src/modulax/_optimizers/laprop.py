"""The optimizer LaProp."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.decayed_step import DecayedStep
from .._transforms.laprop import ScaleByLaProp


class LaProp(AbstractOptimizer):
    r"""Adam that normalizes gradients before the momentum, which decouples the two decay rates.

        optimizer = LaProp(4e-4, b1=0.9, b2=0.9)

    $$
    \begin{aligned}
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \eta_t \frac{g_t}{\sqrt{\hat v_t} + \varepsilon} \\
    r_t &= \beta_1 r_{t-1} + (1 - \beta_1) \eta_t \\
    w_{t+1} &= (1 - \lambda) \left( w_t - \frac{\eta_t}{r_t} m_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = r_0 = 0$. The momentum holds the learning
    rates of its gradients, and $r_t / \eta_t$ corrects its bias, $1 - \beta_1^t$ for a constant rate. As in the
    authors' code, the weight decay is not multiplied by the learning rate.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_decay: weight decay $\lambda$, the fraction by which each step shrinks the parameters.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        centered: whether to divide by the root of the variance, as in `ScaleByLaProp`.
        amsgrad: whether to divide by the root of the largest second moment so far.

    References:
        Ziyin, Wang and Ueda, [LaProp: Separating Momentum and Adaptivity in Adam](https://arxiv.org/abs/2002.04839),
        2020, and the authors' [code](https://github.com/Z-T-WANG/LaProp-Optimizer).
    """

    learning_rate: Hyperparameter = number(4e-4)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-15)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    _: KW_ONLY
    centered: bool = eqx.field(static=True, default=False)
    amsgrad: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        return Chain(
            self._part(ScaleByLaProp),
            DecayedStep(self.learning_rate, self.weight_decay, self.mask, kind="independent", after=True),
        )
