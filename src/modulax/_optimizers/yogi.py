"""Yogi."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.yogi import ScaleByYogi


class Yogi(AbstractOptimizer):
    """Adam with a second moment that does not decay in a hurry. See `ScaleByYogi`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: by which the second moment changes.
        eps: added to the root of the second moment.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-3)

    def transform(self) -> Chain:
        return Chain(ScaleByYogi(self.b1, self.b2, self.eps), ScaleByLearningRate(self.learning_rate))
