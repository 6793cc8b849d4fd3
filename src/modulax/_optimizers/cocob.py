"""COCOB."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._transforms.cocob import ScaleByCOCOB
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import Scale


class COCOB(AbstractOptimizer):
    r"""Coin betting: gradient descent without a learning rate. See `ScaleByCOCOB` for the equations.

    Args:
        learning_rate: a factor of the gradients, to which the steps are all but indifferent.
        alpha: by which the first bets are made smaller.
        eps: the largest gradient that is assumed at first.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Orabona and Tommasi, [Training Deep Networks without Learning Rates Through Coin
        Betting](https://arxiv.org/abs/1705.07795), 2017.
    """

    takes_complex: ClassVar[bool] = False
    cites: ClassVar[tuple[str, ...]] = ("orabona2017",)

    learning_rate: Hyperparameter = number(1.0)
    alpha: Hyperparameter = number(100.0)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay, self.mask),
            Scale(self.learning_rate),
            ScaleByCOCOB(self.alpha, self.eps),
        )
