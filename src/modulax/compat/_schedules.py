"""Schedules where optax's functions do more than construct one: settings that make them constant, and counted steps."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..numerics import safe_increment
from ..schedules import Constant, ExponentialDecay, Join, Linear, Polynomial, WarmupCosineDecay
from ._states import WrappedScheduleState


def exponential_decay(
    init_value, transition_steps, decay_rate, transition_begin=0, staircase=False, end_value=None
) -> Any:
    name = "exponential_decay"
    if _is_constant(name, transition_steps=transition_steps) or _is_constant(name, "0", decay_rate=decay_rate):
        return Constant(init_value)
    begin = _begin(name, transition_begin)
    return ExponentialDecay(init_value, transition_steps, decay_rate, begin, staircase, end_value)


def join_schedules(schedules, boundaries) -> Any:
    pieces, ends = [*schedules], [*boundaries]
    used = min(len(pieces), len(ends) + 1)
    if len(pieces) > used or len(ends) > len(pieces):  # one more, the end of the last piece, is usual
        counts = f"{len(pieces)} schedules and {len(ends)} boundaries"
        warnings.warn(f"`join_schedules` of {counts} uses the first {used} and {used - 1}, as in optax.", stacklevel=3)
    return Join(pieces[:used], ends[: used - 1])


def linear_schedule(init_value, end_value, transition_steps, transition_begin=0) -> Any:
    if _is_constant("linear_schedule", transition_steps=transition_steps):
        return Constant(init_value)
    return Linear(init_value, end_value, transition_steps, _begin("linear_schedule", transition_begin))


def polynomial_schedule(init_value, end_value, power, transition_steps, transition_begin=0) -> Any:
    if _is_constant("polynomial_schedule", transition_steps=transition_steps):
        return Constant(init_value)
    return Polynomial(init_value, end_value, power, transition_steps, _begin("polynomial_schedule", transition_begin))


def warmup_cosine_decay_schedule(init_value, peak_value, warmup_steps, decay_steps, end_value=0.0, exponent=1.0) -> Any:
    if _is_known(peak_value) and peak_value == 0 and _is_known(end_value) and end_value != 0:
        warnings.warn(
            f"`warmup_cosine_decay_schedule(peak_value=0)` ends at 0, as in optax, and not at {end_value}.",
            stacklevel=3,
        )
        end_value = 0.0
    return WarmupCosineDecay(init_value, peak_value, warmup_steps, decay_steps, end_value, exponent)


class WrappedSchedule:
    """A function of the step as a schedule with a state, which counts the steps.

    Args:
        schedule_fn: the function, or a schedule.
    """

    def __init__(self, schedule_fn: Callable[[Any], Any]):
        self.schedule_fn = schedule_fn

    def init(self) -> WrappedScheduleState:
        """Return a count of zero."""
        return WrappedScheduleState(jnp.zeros((), jnp.int32))

    def update(self, state: WrappedScheduleState, **extra: Any) -> WrappedScheduleState:
        """Count a step."""
        del extra
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra: Any) -> Any:
        """Return the value at the step of the state."""
        del extra
        return self.schedule_fn(state.count)


def _is_known(x: Any) -> bool:
    """Whether a number can be compared now: arrays on a device are not read, and traced numbers cannot be."""
    return isinstance(x, (int, float, np.generic, np.ndarray)) and np.ndim(x) == 0


def _is_constant(name: str, largest: str = "0 or less", **argument: Any) -> bool:
    """Whether an argument makes the schedule constant in optax: zero, or for some arguments any value ≤ 0."""
    ((key, value),) = argument.items()
    if not _is_known(value) or value > 0 or (value < 0 and largest == "0"):
        return False
    warnings.warn(f"`{name}({key}={value})` is constant, as in optax, where {key} is {largest}.", stacklevel=4)
    return True


def _begin(name: str, transition_begin: Any) -> Any:
    """The step at which a transition begins: in optax, 0 in place of a negative one."""
    if not _is_known(transition_begin) or transition_begin >= 0:
        return transition_begin
    warnings.warn(f"`{name}(transition_begin={transition_begin})` begins at 0, as in optax.", stacklevel=4)
    return 0
