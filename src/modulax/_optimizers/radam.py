"""RAdam."""

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.radam import ScaleByRAdam
from .._transforms.scaling import ScaleByLearningRate


class RAdam(AbstractOptimizer):
    """Adam that warms up by itself, until its mean square rests on enough gradients. See `ScaleByRAdam`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        threshold: from which length of the average on the steps are adaptive.
        nesterov: whether to look ahead.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    threshold: Hyperparameter = number(5.0)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByRAdam(self.b1, self.b2, self.eps, self.eps_root, self.threshold, nesterov=self.nesterov),
            ScaleByLearningRate(self.learning_rate),
        )
