"""`apply_updates`: add the updates to the parameters, the last line of a training step."""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._support.arithmetic import at_least_float32, is_inexact_array
from .._support.checks import listing
from .._support.placement import placed_like
from .._support.types import P, Updates
from ..tree._align import check_same_shapes, misfit, refuse_numbers
from ..tree._paths import Names, leaves_by_names, longest_prefix


def _add(p: jax.Array | np.ndarray, u: jax.Array | np.ndarray) -> jax.Array:
    if p.dtype == u.dtype and jnp.finfo(p.dtype).bits >= 32:  # no conversion needed: traced in a third of the time
        return jax.lax.add(p, u)
    # The sum is rounded once, also where a float32 update meets a bfloat16 parameter.
    dtype = at_least_float32(p.dtype, u.dtype)
    return jax.lax.add(p.astype(dtype), u.astype(dtype)).astype(p.dtype)


def apply_updates(params: P, updates: Updates) -> P:
    """Add the updates to the parameters, keeping the dtype of each parameter.

    Parameters whose update is None stay unchanged, and so do leaves that aren't floating-point or complex arrays. So
    you can pass a whole model with activation functions, flags and integer arrays.

    Args:
        params: the parameters, or the whole model.
        updates: the updates that a transform returned.

    Returns:
        the new parameters (the whole model, if that was given).

    Raises:
        ValueError: if the paths or shapes of the updates and the parameters differ.
    """
    return applied(_in_one_program, params, updates)


def applied(add: Callable[[list[Any], list[Any]], list[jax.Array]], params: P, updates: Updates) -> P:
    """Return the parameters with those that have an update replaced by what `add` returns for both.

    Args:
        add: a function of the parameters and of the updates, such as `sums`.
        params: as in `apply_updates`.
        updates: as in `apply_updates`.
    """
    leaves, treedef = jtu.tree_flatten(params)
    like = treedef.unflatten([x if is_inexact_array(x) else None for x in leaves])
    trained, treedef_of_trained = jtu.tree_flatten(like)
    if len(trained) < len(leaves):
        refuse_numbers(params, updates, "apply_updates")
    steps = _updates_at(like, updates)
    before = [p for p, u in zip(trained, steps, strict=True) if u is not None]
    check_same_shapes(treedef_of_trained.unflatten(steps), before, "apply_updates")
    after = iter(add(before, [u for u in steps if u is not None]))
    new = treedef_of_trained.unflatten([None if u is None else next(after) for u in steps])
    return eqx.combine(new, params)


def sums(params: list[Any], updates: list[Any]) -> list[jax.Array]:
    """Return the new parameters, each in its dtype. A program that places its results needs no more."""
    return list(map(_add, params, updates))


def _placed_sums(params: list[Any], updates: list[Any]) -> list[jax.Array]:
    # XLA may shard the sum as the update is, where the state is divided over more devices than the parameters.
    return placed_like(sums(params, updates), params)


_compiled = jax.jit(_placed_sums)


def _in_one_program(params: list[Any], updates: list[Any]) -> list[jax.Array]:
    if not any(isinstance(x, Tracer) for x in (*params, *updates)):
        with contextlib.suppress(ValueError):  # no program runs on layers that are on devices of their own
            return _compiled(params, updates)
    return _placed_sums(params, updates)


def _updates_at(params: PyTree, updates: Updates) -> list[Any]:
    """The update of each leaf of the parameters, None if it has none; paired by path if the structures differ."""
    try:
        return jtu.tree_structure(params).flatten_up_to(updates)
    except ValueError:
        found = leaves_by_names("apply_updates", updates, with_none=True)
    prefixes: dict[Names, Any] = {n: longest_prefix(n, found) for n in leaves_by_names("apply_updates", params)}
    lacking = [names for names, prefix in prefixes.items() if prefix is None]
    unknown = [names for names, u in found.items() if u is not None and names not in prefixes]
    if lacking or unknown:
        raise ValueError(
            f"{misfit('apply_updates', 'the parameters', lacking, unknown)} The parameters have "
            f"{listing(map('.'.join, prefixes))}. To leave a parameter unchanged, set its update to None."
        )
    return list(map(found.__getitem__, prefixes.values()))
