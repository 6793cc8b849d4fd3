"""Whether an entry point of ours is being traced."""

import contextlib
import threading
from collections.abc import Iterator


class _State(threading.local):
    inside = False


_state = _State()


def is_tracing() -> bool:
    """Whether we are inside of an entry point: numbers are then traced because we trace them."""
    return _state.inside


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Marks that an entry point is being traced; transforms inside of it run as plain functions."""
    outside, _state.inside = _state.inside, True
    try:
        yield
    finally:
        _state.inside = outside
