"""Whether an entry point of modulax is being traced."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


# Local to a thread, because another one may call an entry point while this one traces.
class _State(threading.local):
    inside = False


_state = _State()


def runs_as_python(kind: type) -> bool:
    """Whether objects of a class run functions of the caller, which are compiled under the caller's `jit` only."""
    return getattr(kind, "runs_as_python", False)


def is_tracing() -> bool:
    """Whether one of our entry points is being traced, so that tracers in the hyperparameters are our own."""
    return _state.inside


@contextlib.contextmanager
def tracing(inside: bool = True) -> Iterator[None]:
    """Mark that an entry point is being traced; transforms called within run as plain functions."""
    outside, _state.inside = _state.inside, inside
    try:
        yield
    finally:
        _state.inside = outside


def call_user(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that a user gave, such as a loss: transforms that it uses are entry points again."""
    with tracing(False):
        return function(*args, **kwargs)
