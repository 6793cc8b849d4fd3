"""The optimizer GramsAdamW."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.cautious import Grams
from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .decayed import decayed


class GramsAdamW(AbstractOptimizer):
    r"""AdamW that takes the size of each step from Adam and its sign from the gradient.

        optimizer = GramsAdamW(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    w_{t+1} &= w_t - \eta \left( \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \,
        \frac{|m_t|}{\sqrt{v_t} + \varepsilon} \operatorname{sign}(g_t) + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. `Grams` does this to any optimizer. As in
    the authors' code, $\varepsilon$ is added before the bias correction, unlike in `AdamW`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Cao et al., [Grams: Gradient Descent with Adaptive Momentum Scaling](https://arxiv.org/abs/2412.17107), 2024,
        and the authors' [code](https://github.com/Gunale0926/Grams).
    """

    learning_rate: Hyperparameter = number(1e-3)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    _: KW_ONLY
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(
            self, Grams(ScaleByAdam(self.b1, self.b2, self.eps, mu_dtype=self.mu_dtype, corrected_eps=False))
        )
