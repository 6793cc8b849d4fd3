"""Arguments of `init` and `update` that cannot be right: the errors of the entry points."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .._support.arithmetic import is_inexact_array
from .._support.checks import accepts_any_range, listing
from .._support.failures import array_type
from .._support.module import AbstractState
from .._support.types import Params, State
from ..tree._align import is_python_number
from ..tree._paths import leaves_with_paths
from .hyperparameters import batched_number


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


def refuse_batch(transform: Any) -> None:
    """Raise an error if a batch of transforms is called like a single one."""
    if not accepts_any_range() and (path := batched_number(transform)):
        name = type(transform).__name__
        raise ValueError(
            f"`{name}` is a batch of transforms: `{path}` is not a scalar. Call it under `vmap`, as in "
            f"`eqx.filter_vmap(lambda t, params: t.init(params), in_axes=(eqx.if_array(0), None))(batch, params)`."
        )


def refuse_shape(name: str, x: Any) -> None:
    """Raise an error for a shape in the place of an array."""
    method = name.rpartition(".")[2]
    raise ValueError(
        f"`{name}` was given shapes in place of arrays, such as {x}. Call `jax.eval_shape(optimizer.{method}, ...)` "
        f"for the shapes of its results."
    )


def refuse_complex(transform: Any, params: Params) -> None:
    """Raise an error for complex parameters of a transform that is defined for real ones only."""
    found = [path for path, p in leaves_with_paths(params) if jnp.issubdtype(p.dtype, jnp.complexfloating)]
    if found:
        raise ValueError(
            f"`{type(transform).__name__}` is not defined for complex parameters, and {listing(found)} is complex. "
            f"Train the real and the imaginary part as two parameters, as `SplitRealAndImaginary(...)` does, or choose "
            f"an optimizer that supports complex parameters."
        )


def refuse_others(owner: str, params: Params) -> None:
    """Raise an error for a Python number, and for a class of parameters that only some transforms accept."""
    if is_python_number(params):
        raise ValueError(f"`{owner}` was given a Python number; give an array, `jnp.asarray(...)`.")
    if hint := getattr(type(params), "_params_hint", ""):
        raise ValueError(f"`{owner}` was given `{type(params).__name__}`. {hint}")


def refuse_empty(owner: str, params: Params) -> None:
    """Raise an error for parameters with nothing to train, and none for what stands for parameters.

    That is a node of its own kind without leaves, as in `optax.tree_map_params`.
    """
    leaves = jtu.tree_leaves(params)
    is_placeholder = not leaves and not isinstance(params, (eqx.Module, Mapping, list, tuple, type(None)))
    if is_placeholder or any(map(is_inexact_array, leaves)):
        return
    found = [f"{path or 'the tree itself'}: {array_type(x)}" for path, x in leaves_with_paths(params)]
    convert = f"It has {listing(found)}. Convert numbers and integers with `jnp.asarray(x, jnp.float32)`."
    if leaves and all(map(callable, leaves)):
        convert = "Give the arrays, and not the function that takes them."
    raise ValueError(
        f"`{owner}` found nothing to train: no leaf of the parameters is a floating-point or complex array. "
        f"{convert if found else 'It has no leaves.'} If nothing is to be trained, write `init(params, "
        f"allow_empty=True)`."
    )
