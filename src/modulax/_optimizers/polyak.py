"""SGD with Polyak's step size."""

from typing import ClassVar, Literal

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import check_choice
from .._support.types import Follow
from .._transforms.polyak import ScaleByPolyak
from .._transforms.scaling import ScaleByLearningRate


class PolyakSGD(AbstractOptimizer):
    r"""Gradient descent with Polyak's step size. See `ScaleByPolyak` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    The `scaling` $s$ is a factor of the step. With `follow="optax"` it is one of the gradient, so that the step is $s
    \min((f - f^\star) / (s^2 \|g\|^2 + \varepsilon), \eta_{\max}) g$: the smaller $s$ is, the longer it gets.

    Args:
        max_learning_rate: the longest step.
        scaling: $s$.
        f_min: the smallest value of the loss, or a lower bound of it.
        eps: added to the squared norm.
        variant: `"sps"`, or `"sps+"`, which never ascends.
        follow: `"paper"`, or `"optax"` for what is said above.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("loizou2020",)

    max_learning_rate: Hyperparameter = number(1.0)
    scaling: Hyperparameter = number(1.0)
    f_min: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(0.0)
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")
    follow: Follow = followed()

    def check(self) -> None:
        check_choice(self, "variant", ("sps", "sps+"))

    def transform(self) -> Chain:
        polyak = ScaleByPolyak(self.f_min, self.max_learning_rate, self.eps, self.variant)
        rate = ScaleByLearningRate(self.scaling)
        return Chain(polyak, rate) if self.follow == "paper" else Chain(rate, polyak)
