"""Arguments of `init` and `update` that cannot be right: the errors of the entry points."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .._support.module import AbstractState
from .._support.types import Params, State


@contextlib.contextmanager
def explaining_state(owner: str, method: Callable[..., Any], state: State) -> Iterator[None]:
    """Explain errors that come from anything else in place of the state of a class of ours."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if message := wrong_state(owner, method, state, error=error):
            raise ValueError(message) from error
        raise


def wrong_state(
    owner: str, method: Callable[..., Any], state: State, params: Params = None, error: Exception | None = None
) -> str | None:
    """The error message for what cannot be a state; None if it is one, or if the transform of a user may have it.

    Args:
        owner: the method that was called.
        method: a method of the transform as its class wrote it.
        state: what was given as the state.
        params: what was given as the parameters.
        error: the error that was raised for it.
    """
    if isinstance(state, AbstractState) and type(getattr(error, "module", None)) is type(state):
        return f"`{owner}` was given the state of another optimizer, a `{type(state).__name__}`. Call its own `init`."
    if isinstance(state, AbstractState) or not (state is None or method.__module__.startswith("modulax.")):
        return None
    if isinstance(params, AbstractState):
        name = owner.rpartition(".")[2]
        return f"`{owner}` was given the parameters and the state in the other order: write `{name}(state, params)`."
    given = "None" if state is None else f"a `{type(state).__name__}`"
    message = f"`{owner}` was given {given} as its state, which must come from its `init(params)`."
    if not isinstance(state, (tuple, type(None))):
        return message
    return (
        f"{message} To continue from a state of optax, write "
        f"`state, _ = modulax.checkpoint.state_from_optax(optimizer.init(params), state, optimizer, params)`."
    )
