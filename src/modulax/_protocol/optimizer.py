"""Transforms whose numbers follow schedules."""

import abc
from typing import Any, ClassVar, Self

import jax.numpy as jnp

from .._support.arithmetic import safe_increment
from .._support.module import AbstractState, nested, shared
from .._support.types import Count, Params, State, Updates
from .in_force import advance, in_force, schedule_states
from .transform import AbstractTransform


class OptimizerState(AbstractState):
    """The number of steps done, by which schedules go, and the state of the transform inside.

    `schedule_states` holds the states of stateful schedules by the dotted path of the number that each is; it is None
    where there is none.
    """

    step: Count = shared()
    inner: State = nested()
    schedule_states: dict[str, State] | None = None


class AbstractOptimizer(AbstractTransform):
    """A transform with a famous name: fields for its hyperparameters, and `transform()` for what it is made of.

        class Momentum(AbstractOptimizer):
            learning_rate: Hyperparameter = number()
            decay: Hyperparameter = number(0.9)

            def transform(self):
                return Chain(Trace(self.decay), ScaleByLearningRate(self.learning_rate))

    At every update each schedule among the fields is replaced by its number at that step, then `transform()` is built
    from plain numbers; so every hyperparameter of every optimizer may be a schedule.
    """

    counts_steps: ClassVar[bool] = True
    keeps_schedules: ClassVar[bool] = True

    @abc.abstractmethod
    def transform(self) -> AbstractTransform:
        """What this optimizer is made of, when all its fields are plain numbers."""

    def init(self, params: Params) -> OptimizerState:
        """The state before the first step."""
        step = jnp.zeros((), jnp.int32)
        states = schedule_states(self)
        return OptimizerState(step, in_force(self, step, states).transform().init(params), states)

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """One step of `transform()`, with the numbers in force at this step."""
        transform = in_force(self, state.step, state.schedule_states, extra).transform()
        updates, inner = transform.update(updates, state.inner, params, **extra)
        states = advance(self, state.step, state.schedule_states, extra)
        return updates, OptimizerState(safe_increment(state.step), inner, states)

    def at(self, state: OptimizerState) -> Self:
        """This optimizer with every schedule replaced by its number for the next step."""
        return in_force(self, state.step, state.schedule_states)

    def eval_params(self, state: OptimizerState, params: Params) -> Params:
        """Those of `transform()`."""
        return self.at(state).transform().eval_params(state.inner, params)
