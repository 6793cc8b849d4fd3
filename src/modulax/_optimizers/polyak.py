"""The optimizer PolyakSGD: SGD with the Polyak step size."""

from typing import ClassVar, Literal

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.types import Follow
from .._transforms.polyak import ScaleByPolyak
from .._transforms.scaling import ScaleByLearningRate


class PolyakSGD(AbstractOptimizer):
    r"""SGD with the Polyak step size, computed from the loss, for problems whose smallest loss is known.

        optimizer = PolyakSGD(1.0, f_min=0.0)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    w_{t+1} = w_t - s \min\left(\frac{f_t - f^\star}{\|g_t\|^2 + \varepsilon},\ \eta_{\max}\right) g_t
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$, and the norm over all parameters. With `follow="optax"`, the
    gradient is multiplied by $s$ before the norm is taken: the step is
    $s \min((f_t - f^\star) / (s^2 \|g_t\|^2 + \varepsilon), \eta_{\max}) g_t$, which gets longer as $s$ gets smaller.

    `update` and `step` need the loss, as `value`.

    Args:
        max_learning_rate: $\eta_{\max}$, the largest step size, a number or a schedule.
        scaling: factor $s$ of the step.
        f_min: $f^\star$, the smallest value of the loss, or a lower bound.
        eps: $\varepsilon$, added to the squared norm.
        variant: `"sps"`, or `"sps+"`, which uses $\max(f_t - f^\star, 0)$ and so never steps uphill.
        follow: `"paper"`, or `"optax"`, which scales the gradient instead of the step.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)

    max_learning_rate: Hyperparameter = number(1.0)
    scaling: Hyperparameter = number(1.0)
    f_min: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(0.0)
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")
    follow: Follow = followed()

    def transform(self) -> Chain:
        polyak = ScaleByPolyak(self.f_min, self.max_learning_rate, self.eps, self.variant)
        rate = ScaleByLearningRate(self.scaling)
        return Chain(polyak, rate) if self.follow == "paper" else Chain(rate, polyak)
