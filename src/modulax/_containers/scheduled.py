"""`Scheduled`: schedules in the fields of a transform that doesn't count steps."""

from typing import Any, ClassVar

from .._protocol.container import AbstractContainer, OptimizerState, required_part, start_counted, step_counted
from .._protocol.schedule_values import with_current_values
from .._protocol.transform import AbstractTransform, Clock
from .._support.module import with_fields
from .._support.types import Params, Updates


class Scheduled(AbstractContainer):
    """Counts steps for schedules in the fields of a transform or a chain.

        Scheduled(Chain(ScaleByAdam(b1=schedules.Linear(0.8, 0.95, 1000)), ScaleByLearningRate(1e-3)))

    Before every update, each schedule in `inner` is replaced by its value at that step. Optimizers such as `AdamW`
    do this themselves.

    Args:
        inner: the inner transform.
    """

    _keeps = "gradients"

    inner: AbstractTransform = required_part(state="inner")

    clock: ClassVar[Clock] = "keeper"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    def init(self, params: Params) -> OptimizerState:
        """Return the inner state, and a step count of zero."""
        return start_counted(self.inner, lambda now: now.init(params))

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """Run one step of the inner transform, with the values of the schedules at this step."""
        return step_counted(self.inner, state, extra, lambda now: now.update(updates, state.inner, params, **extra))

    def resolved(self, state: OptimizerState) -> "Scheduled":
        """Return this container with the schedules that follow its count replaced by their current values.

        Args:
            state: the state of this container.
        """
        return with_fields(self, inner=with_current_values(self.inner, state.step, state.schedule_states))
