"""Schedules in the fields of a bare transform."""

from typing import Any, ClassVar

import jax.numpy as jnp

from .._protocol.container import AbstractContainer, part
from .._protocol.in_force import advance, in_force, schedule_states
from .._protocol.optimizer import OptimizerState
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import safe_increment
from .._support.module import with_fields
from .._support.types import Params, Updates


class Scheduled(AbstractContainer):
    """Lets schedules stand in the fields of a bare transform or a chain.

        Scheduled(Chain(ScaleByAdam(b1=schedules.Linear(0.8, 0.95, 1000)), ScaleByLearningRate(1e-3)))

    Before every update each schedule in `inner` is replaced by its number at that step. Optimizers do this for
    themselves.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform = part(state="inner")

    clock: ClassVar[Clock] = "keeper"

    def init(self, params: Params) -> OptimizerState:
        """The inner state, and a counter at zero."""
        step = jnp.zeros((), jnp.int32)
        states = schedule_states(self.inner)
        return OptimizerState(step, in_force(self.inner, step, states).init(params), states)

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """One step of the inner transform, with the numbers in force at this step."""
        inner = in_force(self.inner, state.step, state.schedule_states, extra)
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        states = advance(self.inner, state.step, state.schedule_states, extra)
        return updates, OptimizerState(safe_increment(state.step), inner_state, states)

    def resolved(self, state: OptimizerState) -> "Scheduled":
        """Return this container with the schedules of its part, if they follow its count, at their current values."""
        return with_fields(self, inner=in_force(self.inner, state.step, state.schedule_states))
