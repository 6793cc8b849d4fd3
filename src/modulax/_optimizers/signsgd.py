"""SignSGD and Signum."""

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.momentum import Ema
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.signsgd import ScaleBySign


class SignSGD(AbstractOptimizer):
    r"""Steps of exactly the learning rate in every coordinate: $w_{t+1} = w_t - \eta \operatorname{sign}(g_t)$.

    Args:
        learning_rate: $\eta$.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    learning_rate: Hyperparameter = number()

    def transform(self) -> Chain:
        return Chain(ScaleBySign(), ScaleByLearningRate(self.learning_rate))


class Signum(AbstractOptimizer):
    r"""`SignSGD` by the sign of the mean of the gradients.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \operatorname{sign}(m_t)
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$.
        beta: the decay $\beta$ of the mean.
        accumulator_dtype: the dtype of the mean; by default the parameter's.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    learning_rate: Hyperparameter = number()
    beta: Hyperparameter = number(0.9, needs=DECAY)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            Ema(self.beta, debias=False, accumulator_dtype=self.accumulator_dtype),  # a bias changes no sign
            ScaleBySign(),
            ScaleByLearningRate(self.learning_rate),
        )
