"""Which step the values of schedules are asked for: the next one, or the last one, for `metrics`."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_steps_back = contextvars.ContextVar("_steps_back", default=0)
_with_factors = contextvars.ContextVar("_with_factors", default=False)
_steps_of_round = contextvars.ContextVar[Any]("_steps_of_round", default=1)


@contextlib.contextmanager
def _in_force(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def at_last_step() -> contextlib.AbstractContextManager[None]:
    """In this block, schedules are replaced by their values at the step that led to a state, not at the next one.

    A stateful schedule, and arithmetic with one, still has its value at the next step: its state before the last one is
    no longer there.
    """
    return _in_force(_steps_back, 1)


def at_next_step() -> contextlib.AbstractContextManager[None]:
    """In this block, also inside one of `at_last_step`, schedules are replaced by their values at the next step."""
    return _in_force(_steps_back, 0)


def with_factors() -> contextlib.AbstractContextManager[None]:
    """In this block, learning rates are replaced by those of the step: multiplied by the optimizer's own warm-up."""
    return _in_force(_with_factors, True)


def has_factors() -> bool:
    """Whether learning rates are asked for with the optimizer's own warm-up."""
    return _with_factors.get()


def steps_back() -> int:
    """How many steps before the next one the values of schedules are asked for."""
    return _steps_back.get()


def in_rounds(steps: Any) -> contextlib.AbstractContextManager[None]:
    """In this block, a step count of zero is one that was reset after this number of steps.

    So the last step before it is the last one of a round, also for a fresh state, which looks the same.
    """
    return _in_force(_steps_of_round, steps)


def steps_of_round() -> Any:
    """The number of steps before a count was last reset to zero; 1 if it never is."""
    return _steps_of_round.get()
