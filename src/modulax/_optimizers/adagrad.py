"""Adagrad."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.adagrad import ScaleByRSS
from .._transforms.scaling import ScaleByLearningRate


class Adagrad(AbstractOptimizer):
    """Gradient descent with each coordinate divided by the root of the sum of its squares. See `ScaleByRSS`.

    The steps become shorter as the sum grows; rarely used coordinates keep long ones.

    Args:
        learning_rate: the step size.
        initial_accumulator_value: the sum of squares at the start.
        eps: added to the sum, inside the root.

    References:
        Duchi, Hazan and Singer, [Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization](https://jmlr.org/papers/v12/duchi11a.html), 2011.
    """

    learning_rate: Hyperparameter = number()
    initial_accumulator_value: Hyperparameter = number(0.1, needs=NON_NEGATIVE)
    eps: Hyperparameter = number(1e-7)

    def transform(self) -> Chain:
        return Chain(
            ScaleByRSS(self.initial_accumulator_value, self.eps),
            ScaleByLearningRate(self.learning_rate),
        )
