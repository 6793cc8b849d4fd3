"""Transforms and schedules whose hyperparameters are Python numbers, for the field of a model."""

from collections.abc import Iterable
from typing import Any, TypeVar

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._support.keys import is_key_data
from .._support.types import ARRAY_TYPES
from ..tree._names import Path, joined
from ..tree._paths import key_names
from ..tree._search import with_value

H = TypeVar("H", bound=eqx.Module)


def freeze_hyperparameters(module: H) -> H:
    """Return an optimizer or a schedule with Python numbers as its hyperparameters, to be a field of a model.

        class Learner(eqx.Module):
            network: eqx.nn.MLP
            optimizer: mx.AdamW

        learner = Learner(network, mx.freeze_hyperparameters(mx.AdamW(1e-3)))

    The hyperparameters of an optimizer are arrays, like parameters. In a model, `equinox.filter_grad` would
    differentiate with respect to them, and an optimizer of the model would train them. Both leave Python numbers alone.
    Under `equinox.filter_jit` they are constants, and new values recompile.

    Args:
        module: the optimizer, or any transform or schedule.

    Raises:
        ValueError: if a hyperparameter is an array with several entries, as in a batch of optimizers.
    """
    for path, x in numbers_with_paths(module):
        if isinstance(x, Tracer):
            raise ValueError(
                f"`freeze_hyperparameters`: `{joined(path)}` of `{type(module).__name__}` is traced, so that its value "
                f"is not known. Call it outside of `jax.jit`, `jax.vmap` and `jax.grad`."
            )
        if isinstance(x, ARRAY_TYPES) and np.ndim(x):
            raise ValueError(
                f"`freeze_hyperparameters`: `{joined(path)}` of `{type(module).__name__}` is an array of shape "
                f"{np.shape(x)}, not a number. Declare the field of the model with `equinox.field(static=True)`."
            )
    return _with_python_numbers(module)


def _with_python_numbers(module: H) -> H:
    """A module with Python numbers wherever the values are known: what is traced stays so."""

    def frozen(x: Any) -> Any:
        if not isinstance(x, ARRAY_TYPES) or isinstance(x, Tracer) or is_key_data(x) or np.ndim(x):
            return x
        # The shortest decimal that is this number.
        return float(str(np.asarray(x)[()])) if x.dtype in (np.float32, np.float64) else x.item()

    return jtu.tree_map(frozen, module)


def frozen_like(new: Any, old: Any, changed: Iterable[Path]) -> Any:
    """The new module with Python numbers where the old one, or a part of it, was frozen; what is traced stays so."""
    for path in changed:
        for stop in range(len(path)):
            part = value_at(old, path[:stop])
            if isinstance(part, eqx.Module) and is_frozen(part):
                part = _with_python_numbers(value_at(new, path[:stop]))
                new = with_value(new, path[:stop], part) if stop else part
                break
    return new


def value_at(module: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path of names, keys and indices."""
    for name in path:
        module = getattr(module, name) if isinstance(module, eqx.Module) else module[name]
    return module


def is_frozen(module: eqx.Module) -> bool:
    """Whether the hyperparameters are Python numbers, as `freeze_hyperparameters` returns them."""
    return {type(x) for _, x in numbers_with_paths(module)} == {float}


def numbers_with_paths(module: eqx.Module) -> list[tuple[Path, Any]]:
    """The hyperparameters of a module with their paths; random keys are left out."""
    # Checkpoints, donation and `vmap` need a random key among the leaves, but it is not a number.
    return [(key_names(path), x) for path, x in jtu.tree_leaves_with_path(module) if not is_key_data(x)]
