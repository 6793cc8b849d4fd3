"""The layout of named optimizers: the state of the chain that they are in optax.

Their step count is in the place of the state of a scheduled learning rate, where optax keeps it too. Other schedules
follow any count in the state, since all count the same steps; if there is none, `ScheduleStates` is added at the end.
"""

from typing import Any

import jax

from .._plugin.arrays import no_steps
from .._plugin.transforms import is_schedule, schedule_states, with_current_values
from ..authoring import AbstractOptimizer, AbstractTransform
from ..states import OptimizerState
from ._layouts import Form, Theirs, from_optax, has_schedules, lays_out, step_count_in, to_optax
from ._slots import WITHOUT_RATE
from ._states import ScheduleStates, is_named


def optimizer_to_optax(t: AbstractOptimizer, state: OptimizerState, form: Form) -> Theirs:
    """Convert the state of what an optimizer is made of, and put the step count into it."""
    count = state.step if _has_scheduled_rate(t) else form.count
    theirs = to_optax(_transform(t), state.inner, form._replace(owner=_owner(t), count=count))
    matters = form.counts or has_schedules(t) or _has_scheduled_rate(t)
    if not matters or (state.schedule_states is None and step_count_in(theirs) is not None):
        return theirs
    extra = ScheduleStates(state.step, state.schedule_states)
    return (*theirs, extra) if type(theirs) is tuple else (theirs, extra)


def optimizer_from_optax(t: AbstractOptimizer, theirs: Theirs, form: Form) -> Any:
    """Convert the state of what an optimizer is made of, and find the step count in it."""
    step, states = no_steps(), None
    if type(theirs) is tuple and theirs and is_named(theirs[-1], "ScheduleStates"):
        *rest, (step, states) = theirs
        is_whole = len(rest) == 1 and not _is_chain(t, form)
        theirs = rest[0] if is_whole else tuple(rest)
    elif (found := step_count_in(theirs)) is not None:
        step = found
    inner = from_optax(_transform(t), theirs, form._replace(owner=_owner(t)))
    return OptimizerState(step, inner, states)


def _is_chain(t: AbstractOptimizer, form: Form) -> bool:
    """Whether the state of what an optimizer is made of is a tuple in optax."""
    inner, form = _transform(t), form._replace(owner=_owner(t))
    return type(jax.eval_shape(lambda like: to_optax(inner, inner.init(like), form), form.like)) is tuple


def _owner(t: AbstractOptimizer) -> str:
    has_rate = getattr(t, "learning_rate", 0) is not None
    return type(t).__name__ if has_rate else WITHOUT_RATE


def _transform(t: AbstractOptimizer) -> AbstractTransform:
    """What an optimizer is made of, with numbers in the place of schedules."""
    return with_current_values(t, no_steps(), schedule_states(t)).transform()


def _has_scheduled_rate(t: AbstractOptimizer) -> bool:
    """Whether optax has a schedule for the learning rate."""
    return is_schedule(getattr(t, "learning_rate", None)) or getattr(t, "warmup_steps", None) is not None


lays_out([AbstractOptimizer], optimizer_to_optax, optimizer_from_optax)
