"""ASGD: averaged SGD."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import ArrayLike, Float

from .. import authoring as ma
from .._containers.averages import ParamAverage
from .._protocol.container import OptimizerState
from .._protocol.schedule import AbstractSchedule
from .._protocol.schedule_values import has_factors, resolve
from .._support.module import with_fields


class AbstractASGD(ma.AbstractFields):
    r"""The hyperparameters of the learning rate of ASGD.

    Args:
        learning_rate: learning rate $\eta$ of the first step, a number or a schedule.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty.
        alpha: $\alpha$, the power at which the learning rate falls.
    """

    learning_rate: ma.Number = ma.number(0.01)
    weight_decay: ma.Number = ma.number(1e-4, needs=ma.NON_NEGATIVE)
    alpha: ma.Number = ma.number(0.75)


class FallingRate(AbstractASGD, AbstractSchedule):
    r"""Learning rate that falls at the speed of an $L_2$ penalty: $\eta / (1 + \lambda \eta t)^\alpha$.

    Args:
        learning_rate: learning rate $\eta$ of the first step, a number or a schedule.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty.
        alpha: $\alpha$, the power at which the learning rate falls.
    """

    def __call__(self, step: ArrayLike) -> Float[ma.Array, "..."]:
        t = jnp.asarray(step).astype(ma.default_float())
        return self.learning_rate / (1 + self.weight_decay * self.learning_rate * t) ** self.alpha


class ASGD(AbstractASGD, ma.AbstractOptimizer):
    r"""Averaged SGD, with a slowly falling learning rate: evaluate the mean of the parameters.

        optimizer = ASGD(0.1, start=1000)
        params, state = optimizer.step(grads, state, params)
        average = optimizer.eval_params(state, params)  # evaluate and save these

    $$
    \begin{aligned}
    \eta_t &= \eta / (1 + \lambda \eta t)^\alpha \\
    w_{t+1} &= w_t - \eta_t (g_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $t = 0, 1, \dots$. The weight of the $L_2$ penalty is also the speed at which
    the learning rate falls. `eval_params(state, params)` returns the mean of all parameters after the first `start`
    steps, and before that the parameters themselves. The state has this mean.

    Args:
        learning_rate: learning rate $\eta$ of the first step, a number or a schedule.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty.
        alpha: $\alpha$, the power at which the learning rate falls.
        start: number of steps before the averaging, as in `ParamAverage`; PyTorch's `t0` is one less.

    References:
        Polyak and Juditsky, [Acceleration of Stochastic Approximation by Averaging](https://doi.org/10.1137/0330046),
        1992; Xu, [Towards Optimal One Pass Large Scale Learning with Averaged Stochastic Gradient
        Descent](https://arxiv.org/abs/1107.2490), 2011.
    """

    start: ma.Number = ma.number(1_000_000, needs=ma.NON_NEGATIVE)

    # Overridden because `metrics` has the learning rate in force.
    def at(self, state: OptimizerState) -> Self:
        """Return this optimizer with every schedule replaced by its value at the next step.

        Args:
            state: the state of this optimizer.
        """
        now = super().at(state)
        return with_fields(now, learning_rate=resolve(now._rate(), state.step)) if has_factors() else now

    def transform(self) -> ParamAverage:
        sgd = ma.Chain(ma.AddDecayedWeights(self.weight_decay), ma.ScaleByLearningRate(self._rate()))
        return ParamAverage(sgd, self.start)

    def _rate(self) -> FallingRate:
        return FallingRate(self.learning_rate, self.weight_decay, self.alpha)
