"""The table of idioms, and what they share: few shapes and few optimizers, so that programs are compiled once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Idiom = Callable[[Any], Any]
IDIOMS: dict[str, Idiom] = {}

PARAMS = {"b": jnp.asarray([0.5, -1.0, 2.0]), "w": jnp.asarray([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])}
GRADS = {"b": jnp.asarray([1.0, 0.5, -0.25]), "w": jnp.asarray([[0.1, -0.5, 2.0], [1.5, -1.0, 0.75]])}
MASK = {"b": False, "w": True}
LABELS = {"b": "slow", "w": "fast"}


def idiom(function: Idiom) -> Idiom:
    """Put a function of the module into the table."""
    assert function.__name__ not in IDIOMS, function.__name__
    IDIOMS[function.__name__] = function
    return function


def idioms(**functions: Idiom) -> None:
    """Put functions of the module into the table."""
    assert not functions.keys() & IDIOMS.keys(), functions.keys() & IDIOMS.keys()
    IDIOMS.update(functions)


def take(tx: Any, state: Any = None, n: int = 2, params: Any = PARAMS, grads: Any = GRADS, **extra: Any) -> Any:
    """The updates of a step and the state after it."""
    state, updates = tx.init(params) if state is None else state, grads
    for _ in range(n):
        updates, state = tx.update(grads, state, params, **extra)
    return updates, state


def error(call: Callable[[], Any]) -> str:
    """The name of the built-in exception that a call raises."""
    try:
        call()
    except Exception as raised:
        return next(cls.__name__ for cls in type(raised).__mro__ if cls.__module__ == "builtins")
    return "no error"


def paths(tree: Any) -> list[str]:
    """The paths of all leaves."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def names(tree: Any) -> list[str]:
    """The paths of all leaves as they are written in rules: `0/mu/w`."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]


def kinds(state: Any) -> Any:
    """The names of the classes in a state."""
    if type(state) is tuple:
        return [kinds(x) for x in state]
    if isinstance(state, dict):
        return {key: kinds(x) for key, x in state.items()}
    return type(state).__name__
