"""Which step the values of schedules are asked for: the next one, or the last one, for `metrics`."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_steps_back = contextvars.ContextVar("_steps_back", default=0)


@contextlib.contextmanager
def at_last_step() -> Iterator[None]:
    """In this block, schedules are replaced by their values at the step that led to a state, not at the next one.

    A stateful schedule still has its value at the next step: its state before the last one is no longer there.
    """
    token = _steps_back.set(1)
    try:
        yield
    finally:
        _steps_back.reset(token)


def steps_back() -> int:
    """How many steps before the next one the values of schedules are asked for."""
    return _steps_back.get()


_steps_of_round = contextvars.ContextVar[Any]("_steps_of_round", default=1)


@contextlib.contextmanager
def in_rounds(steps: Any) -> Iterator[None]:
    """In this block, a step count of zero is one that was reset after this number of steps.

    So the last step before it is the last one of a round, also for a fresh state, which looks the same.
    """
    token = _steps_of_round.set(steps)
    try:
        yield
    finally:
        _steps_of_round.reset(token)


def steps_of_round() -> Any:
    """The number of steps before a count was last reset to zero; 1 if it never is."""
    return _steps_of_round.get()
