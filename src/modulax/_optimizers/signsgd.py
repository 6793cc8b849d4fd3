"""The optimizers SignSGD and Signum."""

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.momentum import Ema
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.signsgd import ScaleBySign


class SignSGD(AbstractOptimizer):
    r"""Gradient descent by the sign of the gradient: every coordinate moves by exactly the learning rate.

        optimizer = SignSGD(1e-3)

    $$
    w_{t+1} = w_t - \eta \operatorname{sign}(g_t)
    $$

    with $g_t$ the gradient at $w_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    learning_rate: Hyperparameter = required_number()

    def transform(self) -> Chain:
        return Chain(ScaleBySign(), ScaleByLearningRate(self.learning_rate))


class Signum(AbstractOptimizer):
    r"""SignSGD with momentum: every coordinate moves by exactly the learning rate, by the sign of the momentum.

        optimizer = Signum(1e-3, beta=0.9)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \operatorname{sign}(m_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the first moment.
        accumulator_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    learning_rate: Hyperparameter = required_number()
    beta: Hyperparameter = number(0.9, needs=DECAY)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            Ema(self.beta, debias=False, accumulator_dtype=self.accumulator_dtype),  # it changes no sign
            ScaleBySign(),
            ScaleByLearningRate(self.learning_rate),
        )
