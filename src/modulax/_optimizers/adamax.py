"""Adamax, with and without weight decay."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adamax import ScaleByAdamax
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class Adamax(AbstractOptimizer):
    """Adam with the maximum of past gradients in place of their root mean square. See `ScaleByAdamax`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the maximum.
        eps: added to the absolute values before the maximum.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)

    def transform(self) -> Chain:
        return Chain(ScaleByAdamax(self.b1, self.b2, self.eps), ScaleByLearningRate(self.learning_rate))


class AdamaxW(AbstractOptimizer):
    """Adamax with decoupled weight decay. See `ScaleByAdamax` and `AdamW`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the maximum.
        eps: added to the absolute values before the maximum.
        weight_decay: the rate of decay, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdamax(self.b1, self.b2, self.eps),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
