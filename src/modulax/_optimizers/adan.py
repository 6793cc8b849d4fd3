"""Adan."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.adan import ScaleByAdan
from .._transforms.regularization import AddDecayedWeights, ProximalWeightDecay
from .._transforms.scaling import ScaleByLearningRate


class Adan(AbstractOptimizer):
    r"""Adam with a Nesterov momentum made of differences of gradients. See `ScaleByAdan` for the direction $u_t$.

    The weight decay is the paper's proximal one, $w_{t+1} = (w_t - \eta u_t) / (1 + \eta \lambda)$. With
    `follow="optax"` it is that of `AdamW`, $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, and the direction is optax's.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean.
        b2: the decay of the mean of the differences.
        b3: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"` or `"optax"`, in the weight of the difference and in the weight decay.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.98, needs=DECAY)
    b2: Hyperparameter = number(0.92, needs=DECAY)
    b3: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> Chain:
        direction = ScaleByAdan(self.b1, self.b2, self.b3, self.eps, self.eps_root, follow=self.follow)
        rate = ScaleByLearningRate(self.learning_rate)
        if self.follow == "paper":
            return Chain(direction, rate, ProximalWeightDecay(self.learning_rate, self.weight_decay, self.mask))
        return Chain(direction, AddDecayedWeights(self.weight_decay, self.mask), rate)
