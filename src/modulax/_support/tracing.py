"""Whether an entry point of modulax is being traced."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _State(threading.local):
    inside = False
    is_plain = False
    precedes_survey = False


class NotCompiledError(Exception):
    """Raised while a program is traced that must run as plain Python."""


_state = _State()


def is_tracing() -> bool:
    """Whether one of our entry points is being traced, so that tracers in the hyperparameters are our own."""
    return _state.inside


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Mark that an entry point is being traced; transforms called within run as plain functions."""
    with _set(True):
        yield


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Mark that the program runs as plain Python, on the caller's own values."""
    before, _state.is_plain = _state.is_plain, True
    try:
        yield
    finally:
        _state.is_plain = before


def require_plain() -> None:
    """Raise `NotCompiledError` in a program that is compiled: functions of the caller see values there, not tracers."""
    if _state.inside and not _state.is_plain:
        raise NotCompiledError


def call_user(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that a user gave, such as a loss: transforms that it uses are entry points again."""
    with _set(False):
        return function(*args, **kwargs)


@contextlib.contextmanager
def preceding_survey(is_so: bool) -> Iterator[None]:
    """Mark whether a later rule of the chain reads the updates of all leaves at once, as a clip by their norm does."""
    before = _state.precedes_survey
    _state.precedes_survey = before or is_so
    try:
        yield
    finally:
        _state.precedes_survey = before


def precedes_survey() -> bool:
    """Whether a later rule of the chain reads the updates of all leaves at once."""
    return _state.precedes_survey


@contextlib.contextmanager
def _set(inside: bool) -> Iterator[None]:
    outside, _state.inside = _state.inside, inside
    try:
        yield
    finally:
        _state.inside = outside
