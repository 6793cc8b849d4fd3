"""Named optimizers: flat hyperparameters, and one expression that says which transform they mean."""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import jax.numpy as jnp

from .._support.arithmetic import safe_increment
from .._support.module import AbstractState, nested, shared
from .._support.types import Count, Params, State, Updates
from .container import check_parts, eval_parts
from .in_force import advance, in_force, schedule_states
from .transform import AbstractTransform, Clock, Part


class OptimizerState(AbstractState):
    """The state of every optimizer: the number of steps done, which schedules follow, and the state of `transform()`.

    `schedule_states` holds the states of stateful schedules by the dotted path of the field that each is in, or None if
    there are none.
    """

    step: Count = shared()
    inner: State = nested()
    schedule_states: dict[str, State] | None = shared(None)


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

    clock: ClassVar[Clock] = "keeper"

    @abc.abstractmethod
    def transform(self) -> AbstractTransform:
        """Return what this optimizer is made of, once every field is a plain number."""

    def _check_parts(self) -> None:
        check_parts(self)  # those that are handed on to `transform()`

    def init(self, params: Params) -> OptimizerState:
        """Return the state before the first step."""
        step = jnp.zeros((), jnp.int32)
        states = schedule_states(self)
        return OptimizerState(step, in_force(self, step, states).transform().init(params), states)

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """Do one step of `transform()`, with the hyperparameters of this step."""
        transform = in_force(self, state.step, state.schedule_states, extra).transform()
        updates, inner = transform.update(updates, state.inner, params, **extra)
        states = advance(self, state.step, state.schedule_states, extra)
        return updates, OptimizerState(safe_increment(state.step), inner, states)

    def at(self, state: OptimizerState) -> Self:
        """Return this optimizer with every schedule replaced by its value at the next step."""
        return in_force(self, state.step, state.schedule_states)

    def each_part(self, state: OptimizerState | None = None) -> Iterator[Part]:
        """Yield `transform()`, at the first step or at that of the state."""
        if state is None:
            yield Part("transform", None, in_force(self, 0, schedule_states(self)).transform())
        else:
            yield Part("transform", None, self.at(state).transform(), state.inner)

    def eval_params(self, state: OptimizerState, params: Params) -> Params:
        """Return the evaluation parameters of `transform()`."""
        return eval_parts(self, state, params)
