"""Optimistic gradient descent and optimistic Adam."""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.optimistic import ScaleByOptimisticGradient
from .._transforms.scaling import ScaleByLearningRate


class OptimisticGradientDescent(AbstractOptimizer):
    """Gradient descent that extrapolates to the next gradient, for games. See `ScaleByOptimisticGradient`.

    Args:
        learning_rate: the step size.
        alpha: the weight of the gradient.
        beta: the weight of its change since the last step.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    learning_rate: Hyperparameter = number()
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)

    def transform(self) -> Chain:
        return Chain(ScaleByOptimisticGradient(self.alpha, self.beta), ScaleByLearningRate(self.learning_rate))


class OptimisticAdam(AbstractOptimizer):
    """Adam whose direction extrapolates to the next one, for games. See `ScaleByOptimisticGradient`.

    It is optax's `optimistic_adam_v2`. The paper has no look-ahead in the mean: `nesterov=False`.

    Args:
        learning_rate: the step size.
        alpha: the weight of Adam's direction.
        beta: the weight of its change since the last step.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether the mean looks ahead.

    References:
        Daskalakis et al., [Training GANs with Optimism](https://arxiv.org/abs/1711.00141), 2017.
    """

    cites: ClassVar[tuple[str, ...]] = ("daskalakis2017",)

    learning_rate: Hyperparameter = number()
    _: KW_ONLY
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            ScaleByOptimisticGradient(self.alpha, self.beta),
            ScaleByLearningRate(self.learning_rate),
        )
