"""Whether an entry point of modulax is being traced."""

import contextlib
import threading
from collections.abc import Iterator


class _State(threading.local):
    inside = False


_state = _State()


def is_tracing() -> bool:
    """Whether one of our entry points is being traced, so that tracers in the hyperparameters are our own."""
    return _state.inside


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Mark that an entry point is being traced; transforms called within run as plain functions."""
    outside, _state.inside = _state.inside, True
    try:
        yield
    finally:
        _state.inside = outside
