"""The optimizer Lion."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.lion import ScaleByLion
from .decayed import decayed


class Lion(AbstractOptimizer):
    r"""Sign-based momentum optimizer with half the state of Adam: every coordinate moves by exactly the learning rate.

        optimizer = Lion(1e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    c_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    m_t &= \beta_2 m_{t-1} + (1 - \beta_2) g_t \\
    w_{t+1} &= w_t - \eta (\operatorname{sign}(c_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$. Compared with AdamW, the learning rate should be about 3 to 10 times
    smaller, and the weight decay coefficient larger by the same factor.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: weight $\beta_1$ of the momentum in the interpolation $c_t$.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-3)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, ScaleByLion(self.b1, self.b2, self.mu_dtype))
