"""Named optimizers: flat hyperparameters, and a method `transform()` that composes the algorithm from transforms."""

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

from .._support.arithmetic import no_steps, safe_increment
from .._support.module import AbstractState, from_same_fields, nested, shared, with_fields
from .._support.tracing import tracing
from .._support.types import Count, P, Params, State, Updates
from .container import check_parts, eval_parts, part_fields
from .schedule_values import advance, schedule_states, with_current_values
from .transform import AbstractTransform, Clock, Part

T = TypeVar("T", bound=AbstractTransform)


class OptimizerState(AbstractState):
    """State of every optimizer, and of `Scheduled`: step count, state of the transform, and states of schedules.

    Schedules follow the step count `step`. `schedule_states` holds the states of stateful schedules by the dotted path
    of the field that holds each, or None if there are none.
    """

    step: Count = shared(metric=True)
    inner: State = nested()
    schedule_states: dict[str, State] | None = shared(None)


class AbstractOptimizer(AbstractTransform):
    """A named optimizer: fields for its hyperparameters, and `transform()`, which composes it from transforms.

        class Momentum(AbstractOptimizer):
            learning_rate: Number = required_number()
            decay: Number = number(0.9)

            def transform(self):
                return Chain(Trace(self.decay), ScaleByLearningRate(self.learning_rate))

    At every update, each schedule in the fields is replaced by its value at that step before `transform()` is called,
    so that every hyperparameter of every optimizer can be a schedule.
    """

    clock: ClassVar[Clock] = "keeper"
    _negates = True
    _keeps = "gradients"

    @abc.abstractmethod
    def transform(self) -> AbstractTransform:
        """Return the transform that implements this optimizer; schedules in its fields have been replaced by values."""

    def _part(self, cls: type[T], **values: Any) -> T:
        """Return a transform with the hyperparameters that this optimizer has under the same names.

        Args:
            cls: the class of the transform.
            values: arguments that differ, or that this optimizer does not have.
        """
        return from_same_fields(cls, self, **values)

    def _check_parts(self) -> None:
        check_parts(self)  # transforms in the fields, which `transform()` uses

    def init(self, params: Params) -> OptimizerState:
        """Return the initial state: the state of `transform()`, and a step count of zero."""
        return start_counted(self, lambda now: now.transform().init(params))

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """Run one step of `transform()`, with the values of the hyperparameters at this step."""
        return step_counted(
            self, state, extra, lambda now: now.transform().update(updates, state.inner, params, **extra)
        )

    def at(self, state: OptimizerState) -> Self:
        """Return this optimizer with every schedule replaced by its value at the next step.

        Args:
            state: the state of this optimizer.
        """
        now = with_current_values(self, state.step, state.schedule_states)
        parts = {field.name: getattr(now, field.name) for field in part_fields(now)}
        if not parts:
            return now
        inside = list(_all_parts(now.transform(), state.inner))
        # `transform()` passes the transforms in the fields on, so that they are recognized by identity.
        fields = {name: p.transform.at(p.state) for name, x in parts.items() for p in inside if p.transform is x}
        return with_fields(now, **fields)

    def each_part(self, state: OptimizerState | None = None) -> Iterator[Part]:
        """Yield `transform()`, with the values of schedules at the next step, or at the first if no state is given.

        Args:
            state: the state of this optimizer.
        """
        now = with_current_values(self, 0, schedule_states(self)) if state is None else self.at(state)
        with tracing():  # its numbers were checked
            transform = now.transform()
        yield Part("transform", None, transform, None if state is None else state.inner)

    def eval_params(self, state: OptimizerState, params: P) -> P:
        """Return the evaluation parameters of `transform()`."""
        return eval_parts(self, state, params)


def start_counted(transform: T, init: Callable[[T], State]) -> OptimizerState:
    """Return the initial state of an optimizer or of `Scheduled`, whose schedules have the values of the first step.

    Args:
        transform: the transform whose fields may be schedules.
        init: a function of it with their values, which returns the state inside.
    """
    step, states = no_steps(), schedule_states(transform)
    return OptimizerState(step, init(with_current_values(transform, step, states)), states)


def step_counted(
    transform: T, state: OptimizerState, extra: Mapping[str, Any], update: Callable[[T], tuple[Updates, State]]
) -> tuple[Updates, OptimizerState]:
    """Run one step of an optimizer or of `Scheduled`, whose schedules have the values of this step.

    Args:
        transform: the transform whose fields may be schedules.
        state: the state before the step.
        extra: the extra arguments of `update`.
        update: a function of the transform with their values, which returns the updates and the new state inside.
    """
    updates, inner = update(with_current_values(transform, state.step, state.schedule_states, extra))
    # The value of a schedule at a step is that of the state before it, as in optax.
    states = advance(transform, state.step, state.schedule_states, extra)
    return updates, OptimizerState(safe_increment(state.step), inner, states)


def _all_parts(transform: AbstractTransform, state: State) -> Iterator[Part]:
    """Iterate over the parts of a transform, and over theirs, with their states."""
    for part in transform.each_part(state):
        yield part
        yield from _all_parts(part.transform, part.state)
