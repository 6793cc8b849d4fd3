"""Lion."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.lion import ScaleByLion
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class Lion(AbstractOptimizer):
    r"""Steps of exactly the learning rate in every coordinate, by the sign of the momentum.

    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, with $u_t$ of `ScaleByLion`. It wants a learning rate some 3 to
    10 times smaller than Adam's, and a weight decay as much larger.

    Args:
        learning_rate: $\eta$.
        b1: the weight of the momentum in the direction.
        b2: the decay of the momentum.
        mu_dtype: the dtype of the momentum; by default the parameter's.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-3)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByLion(self.b1, self.b2, self.mu_dtype),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
