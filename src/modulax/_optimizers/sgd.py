"""Gradient descent, with and without momentum."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._transforms.momentum import Trace
from .._transforms.scaling import ScaleByLearningRate


class SGD(AbstractOptimizer):
    r"""Stochastic gradient descent: $w_{t+1} = w_t - \eta v_t$, with $v_t = g_t$ or `Trace`'s momentum.

    Args:
        learning_rate: $\eta$.
        momentum: the decay of the momentum; None for none, and no state for it.
        nesterov: whether the momentum looks ahead.
        accumulator_dtype: the dtype of the momentum; by default the parameter's.

    References:
        Robbins and Monro, [A Stochastic Approximation Method](https://doi.org/10.1214/aoms/1177729586), 1951.
    """

    cites: ClassVar[tuple[str, ...]] = ("robbins1951",)

    learning_rate: Hyperparameter = number()
    momentum: Hyperparameter | None = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        rate = ScaleByLearningRate(self.learning_rate)
        if self.momentum is None:
            return Chain(rate)
        return Chain(Trace(self.momentum, self.nesterov, self.accumulator_dtype), rate)
