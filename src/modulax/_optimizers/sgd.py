"""The optimizer SGD, with and without momentum."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._transforms.momentum import Trace
from .._transforms.scaling import ScaleByLearningRate


class SGD(AbstractOptimizer):
    r"""Stochastic gradient descent, optionally with momentum or Nesterov momentum.

        optimizer = SGD(0.1, momentum=0.9, nesterov=True)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    v_t &= \mu v_{t-1} + g_t \\
    w_{t+1} &= w_t - \eta\, v_t \quad\text{or, with Nesterov momentum,}\quad w_{t+1} = w_t - \eta (\mu v_t + g_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $v_0 = 0$. Without momentum, $v_t = g_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.
        accumulator_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Robbins and Monro, [A Stochastic Approximation Method](https://doi.org/10.1214/aoms/1177729586), 1951.
    """

    _call_hint: ClassVar[str] = (
        "torch's order is `lr, momentum, dampening, weight_decay, nesterov`; weight decay is another transform here: "
        "`Chain(AddDecayedWeights(1e-4), SGD(0.1, momentum=0.9))`."
    )

    learning_rate: Hyperparameter = required_number()
    momentum: OptionalNumber = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        rate = ScaleByLearningRate(self.learning_rate)
        if self.momentum is None:
            return Chain(rate)
        return Chain(Trace(self.momentum, self.nesterov, self.accumulator_dtype), rate)
