"""ACProp."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.acprop import ScaleByACProp
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class ACProp(AbstractOptimizer):
    r"""Gradients over their standard deviation so far: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    $u_t$ is that of `ScaleByACProp`.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean, about which the variance is measured.
        b2: the decay of the variance.
        eps: added to the standard deviation. A model with ReLUs needs 1e-4 or so, see `ScaleByACProp`.
        eps_root: added to the variance in every step.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"`, or `"optax"`, which measures the deviation from the mean before the step.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(
            ScaleByACProp(self.b1, self.b2, self.eps, self.eps_root, follow=self.follow),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
