"""AdaBelief."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adabelief import ScaleByBelief
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class AdaBelief(AbstractOptimizer):
    """Adam with the distance of the gradients from their mean in place of their size. See `ScaleByBelief`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the squared distance.
        eps: added to the root of the squared distance.
        eps_root: added to the squared distance at every step.
        weight_decay: the rate of decay, which is multiplied by the learning rate; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to look ahead.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        belief = ScaleByBelief(self.b1, self.b2, self.eps, self.eps_root, nesterov=self.nesterov)
        decay = [] if self.weight_decay is None else [AddDecayedWeights(self.weight_decay, self.mask)]
        return Chain(belief, *decay, ScaleByLearningRate(self.learning_rate))
