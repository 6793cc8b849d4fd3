"""Multiplication by a constant, a schedule, or a learning rate."""

import equinox as eqx
import jax.tree_util as jtu

from .._protocol.fields import Number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule import is_schedule
from .._protocol.transform import Effect, EmptyState
from .._support.module import AbstractState, counter
from .._support.types import Count, Shared


class Scale(AbstractLeafwise):
    r"""Multiplies the updates by a number: $u = \alpha g$.

    Args:
        step_size: factor $\alpha$.
    """

    step_size: Number = required_number()

    def _effect(self, tree):
        return Effect([self.step_size] * len(jtu.tree_leaves(tree)))

    def update_leaf(self, now, g, s, p):
        del now, p
        return self.step_size * g, s


class ScaleByScheduleState(AbstractState):
    """State of a factor that follows a schedule: step count."""

    optax_fields = ("count",)

    count: Shared[Count] = counter()


class ScaleBySchedule(AbstractLeafwise[ScaleByScheduleState]):
    r"""Multiplies the updates by the value of a schedule: $u_t = \alpha(t)\, g_t$, with $t$ from 0.

    It doesn't flip the sign: for a learning rate schedule use `ScaleByLearningRate`.

    Args:
        step_size: schedule $\alpha$.
    """

    step_size: Number = required_number()

    def init_leaf(self, p):
        del p
        return ScaleByScheduleState()

    def prepare(self, count):
        del count
        return self.step_size

    def _effect(self, tree):
        return Effect([self.step_size] * len(jtu.tree_leaves(tree)))

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class ScaleByLearningRate(AbstractLeafwise):
    r"""Multiplies the updates by minus the learning rate: $u = -\eta\, g$. The last part of most chains.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule. With a schedule the state counts the steps.
        flip_sign: whether to flip the sign, for minimization.
    """

    learning_rate: Number = required_number()
    flip_sign: bool = eqx.field(static=True, default=True)

    def init_leaf(self, p):
        del p
        # A constant needs no count, so that the chain has no counter for it, as in optax.
        return ScaleByScheduleState() if is_schedule(self.learning_rate) else EmptyState()

    def prepare(self, count):
        del count
        return -self.learning_rate if self.flip_sign else self.learning_rate

    def update_leaf(self, now, g, s, p):
        del p
        # The scalar is the first operand, for fewer kernels on the CPU (docs/design_edges.md, "Compilation cost").
        return now * g, s
