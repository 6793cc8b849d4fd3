"""MoMo and MoMoAdam."""

from typing import ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.momo import ScaleByMoMo, ScaleByMoMoAdam
from .._transforms.scaling import Scale


class MoMo(AbstractOptimizer):
    """Gradient descent with momentum and an adaptive step size. See `ScaleByMoMo` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    Args:
        learning_rate: the longest step, which may be large.
        beta: the decay of the averages.
        lower_bound: a lower bound of the loss; zero is often a good one.
        weight_decay: the rate of the proximal weight decay.
        adapt_lower_bound: whether to estimate the lower bound on the way.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

    learning_rate: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(0.9, needs=DECAY)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        rule = ScaleByMoMo(
            self.learning_rate,
            self.beta,
            self.lower_bound,
            self.weight_decay,
            self.adapt_lower_bound,
            follow=self.follow,
        )
        return Chain(rule, Scale(-1.0))


class MoMoAdam(AbstractOptimizer):
    """Adam with an adaptive step size. See `ScaleByMoMoAdam` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    Args:
        learning_rate: the longest step, which may be large.
        b1: the decay of the averages.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        lower_bound: a lower bound of the loss; zero is often a good one.
        weight_decay: the rate of the proximal weight decay.
        adapt_lower_bound: whether to estimate the lower bound on the way.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

    learning_rate: Hyperparameter = number(1e-2)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        rule = ScaleByMoMoAdam(
            self.learning_rate,
            self.b1,
            self.b2,
            self.eps,
            self.lower_bound,
            self.weight_decay,
            self.adapt_lower_bound,
            follow=self.follow,
        )
        return Chain(rule, Scale(-1.0))
