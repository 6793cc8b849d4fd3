"""Optimizers that divide by sums or averages of squares alone: Adagrad, Adadelta."""

from typing import Any

import equinox as eqx

from .._checks import DECAY, NON_NEGATIVE
from .._containers.chain import Chain
from .._rules import as_rule
from .._schedule import Hyperparameter, number
from .._transforms.accumulators import ScaleByAdadelta, ScaleByRSS
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .base import AbstractOptimizer


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
