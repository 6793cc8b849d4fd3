"""Multiplication by a number: a constant, a learning rate, a schedule."""

import equinox as eqx

from .._protocol.fields import Hyperparameter, Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule import is_schedule
from .._protocol.transform import EmptyState
from .._support.module import AbstractState, counter
from .._support.types import Count


class Scale(AbstractLeafwise):
    r"""Multiplies the updates by a number: $u = \alpha g$.

    Args:
        step_size: the factor $\alpha$.
    """

    step_size: Number = number()

    def update_leaf(self, now, g, s, p):
        del now, p
        return self.step_size * g, s


class ScaleByScheduleState(AbstractState):
    """The state of a factor that follows a schedule: the number of steps done."""

    count: Count | None = counter()


class ScaleBySchedule(AbstractLeafwise):
    r"""Multiplies the updates by a number that depends on the step: $u_t = \alpha(t)\, g_t$, with $t$ from 0.

    The sign is not changed: a learning rate is `ScaleByLearningRate`.

    Args:
        step_size: the schedule $\alpha$.
    """

    step_size: Hyperparameter = number()

    def init_leaf(self, p):
        del p
        return ScaleByScheduleState()

    def prepare(self, count):
        del count
        return self.step_size

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class ScaleByLearningRate(AbstractLeafwise):
    r"""Turns a direction of ascent into a step: $u = -\eta\, g$. The last part of most chains.

    Args:
        learning_rate: the step size $\eta$, a number or a schedule. With a schedule the state counts the steps.
        flip_sign: whether to change the sign, for minimisation.
    """

    learning_rate: Hyperparameter = number()
    flip_sign: bool = eqx.field(static=True, default=True)

    def init_leaf(self, p):
        del p
        return ScaleByScheduleState() if is_schedule(self.learning_rate) else EmptyState()

    def prepare(self, count):
        del count
        return -self.learning_rate if self.flip_sign else self.learning_rate

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s
