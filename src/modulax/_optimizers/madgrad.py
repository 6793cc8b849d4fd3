"""MADGRAD."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.madgrad import ScaleByMADGRAD
from .._transforms.regularization import AddDecayedWeights


class MADGRAD(AbstractOptimizer):
    r"""Dual averaging with momentum: steps from the first point, not from the last. See `ScaleByMADGRAD`.

    Args:
        learning_rate: the step size.
        momentum: the momentum.
        weight_decay: the rate of an $L_2$ penalty, which is added to the gradient.
        eps: added to the denominator, and to the learning rate.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021.
    """

    learning_rate: Hyperparameter = number()
    momentum: Hyperparameter = number(0.9, needs=DECAY)
    weight_decay: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-6)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay),
            ScaleByMADGRAD(self.learning_rate, self.momentum, self.eps),
        )
