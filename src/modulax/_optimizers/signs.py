"""Steps of a length that does not depend on the gradient's: the sign methods and Rprop."""

import equinox as eqx
from jaxtyping import DTypeLike

from .._checks import DECAY
from .._containers.chain import Chain
from .._schedule import Hyperparameter, followed, number
from .._transforms.momentum import Ema
from .._transforms.scaling import Scale, ScaleByLearningRate
from .._transforms.signs import ScaleByRprop, ScaleBySign
from .._types import Follow
from .base import AbstractOptimizer


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


class Rprop(AbstractOptimizer):
    """Resilient backpropagation: a step size for every coordinate, led by the sign of the gradient alone.

    It is for gradients of the whole data set: noise changes signs. See `ScaleByRprop` for the equations.

    Args:
        learning_rate: the step size at the start. Of a schedule only the first number is used.
        eta_minus: the factor of the step size where the sign changed.
        eta_plus: the factor where it did not.
        min_step_size: the smallest step.
        max_step_size: the largest step.
        follow: `"paper"`, or `"optax"`, whose steps are one late.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    learning_rate: Hyperparameter = number()
    eta_minus: Hyperparameter = number(0.5)
    eta_plus: Hyperparameter = number(1.2)
    min_step_size: Hyperparameter = number(1e-6)
    max_step_size: Hyperparameter = number(50.0)
    follow: Follow = followed()

    def transform(self) -> Chain:
        sizes = (self.eta_minus, self.eta_plus, self.min_step_size, self.max_step_size)
        return Chain(ScaleByRprop(self.learning_rate, *sizes, follow=self.follow), Scale(-1.0))
