"""The base class of transforms whose state counts their steps."""

from typing import Any, ClassVar, Self

from .schedule_values import resolve
from .transform import AbstractTransform, Clock


class AbstractCounted(AbstractTransform):
    """A transform with a step count in its state, the field `count`, at which its schedules are evaluated."""

    clock: ClassVar[Clock] = "steps"

    def at(self, state: Any) -> Self:
        """Return the transform with every schedule replaced by its value at the next step.

        Args:
            state: the state of this transform.
        """
        return resolve(self, state.count)
