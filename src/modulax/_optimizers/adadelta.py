"""Adadelta."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adadelta import ScaleByAdadelta
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class Adadelta(AbstractOptimizer):
    """Steps in the units of the parameters, so that the learning rate may be 1. See `ScaleByAdadelta`.

    The weight decay is a penalty on the loss, added to the gradients before they are scaled.

    Args:
        learning_rate: the step size; the paper has none, which is 1.
        rho: the decay of both mean squares.
        eps: added to both inside the roots.
        weight_decay: the weight of the penalty.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Zeiler, [ADADELTA: An Adaptive Learning Rate Method](https://arxiv.org/abs/1212.5701), 2012.
    """

    learning_rate: Hyperparameter = number(1.0)
    rho: Hyperparameter = number(0.9, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByAdadelta(self.rho, self.eps),
            ScaleByLearningRate(self.learning_rate),
        )
