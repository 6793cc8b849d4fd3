"""A training step: `step`, as one compiled program or compiled ahead of time, and its end, `apply_updates`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._support.arithmetic import at_least_float32, is_inexact_array, is_numeric_array
from .._support.checks import listing
from .._support.failures import located
from .._support.gathering import gathered_into
from .._support.placement import placed_like
from .._support.types import P, Params, S, State, Updates
from ..tree._align import check_same_shapes, misfit, refuse_numbers, trained
from ..tree._leaves import arrays_of, with_arrays
from ..tree._paths import Names, leaves_by_names, longest_prefix
from ..tree._state import owners
from .entry import as_written, explaining_state
from .extra_arguments import refuse_hyperparameters
from .program import Program

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Move(Generic[T]):
    """What `_take_step` needs besides the gradients and the state.

    Args:
        params: the parameters, or None if `update` was called without them.
        extra: the extra arguments of `update`.
        apply: a function of the updates, such as the one that adds them to the parameters.
        skipped: the result of `apply` if nothing moves.
    """

    params: Params | None
    extra: Mapping[str, Any]
    apply: Callable[[Updates], T]
    skipped: T


@functools.cache
def step_program(cls: type, donate: bool) -> Program:
    """Return the program of `step`, a function of the gradients, the parameters, the state and a dict of `extra`.

    JAX pairs donated buffers with results of equal shape in their order, so that the parameters are first in both. With
    the state first in both, XLA for GPU copies the moments of LAMB.

    Args:
        cls: the class of the transform.
        donate: whether the buffers of the parameters and the state are donated.
    """

    def run(transform, grads, params, state, extra):
        refuse_hyperparameters(f"{cls.__name__}.step", transform, extra)
        given, grads = trained(params, grads, f"{cls.__name__}.step", per_example=transform.example_axes)
        # The branches of a `cond` return arrays alone, and a model holds functions.
        kept = arrays_of(params)
        with explaining_state(f"{cls.__name__}.step", as_written(cls.update), state), located(cls.__name__, "step"):
            yes, no = jnp.ones((), bool), jnp.zeros((), bool)  # whether the parameters move
            move = Move(given, extra, lambda updates: (arrays_of(applied(sums, params, updates)), yes), (kept, no))
            (moved, is_new), new = transform._take_step(grads, state, move)
            moved = gathered_into(kept, moved, lambda: _beside(params, state), is_new, is_certain=is_new is yes)
        # Out of a `cond`, XLA for GPU would return whole arrays.
        return with_arrays(params, placed_like(moved, kept)), placed_like(new, state)

    return Program(run, f"{cls.__name__}.step", models=(0, 1), donated=(1, 2) if donate else (), result=1)


def _beside(params: Params, state: State) -> list[Any]:
    """For each array of the parameters the first one of its shape in the state, or None."""
    found = dict[int | None, Any]()
    for owner, x in zip(owners(state, params, of_same_shape=True), jtu.tree_leaves(state), strict=True):
        found.setdefault(owner, x)
    return [found.get(i) for i, p in enumerate(jtu.tree_leaves(params)) if is_numeric_array(p)]


@dataclasses.dataclass(frozen=True)
class DonatedStep:
    """What `jit_step` returns: `step` with the buffers of the state and the parameters donated.

    Args:
        optimizer: the optimizer.
    """

    optimizer: Any

    def __call__(self, grads: Updates, state: S, params: P, **extra: Any) -> tuple[P, S]:
        """Run one step, as `optimizer.step(grads, state, params, donate=True)` does."""
        return self.optimizer.step(grads, state, params, donate=True, **extra)

    def lower(self, grads: Updates, state: State, params: Params, **extra: Any) -> jax.stages.Lowered:
        """Trace a step for arrays, or for shapes with shardings; `.compile()` of the result runs nothing.

        The compiled step is called by keyword, `compiled(grads=grads, state=state, params=params)`. It takes and
        returns the arrays of a model, without its functions.

        Args:
            grads: as in `step`, or their shapes; likewise all others.
            state: the state.
            params: the parameters, or the whole model.
            extra: extra arguments of `update`. The compiled step has the functions, and takes None in their places.
        """
        is_traced = lambda x: isinstance(x, jax.ShapeDtypeStruct) or eqx.is_array_like(x)  # noqa: E731
        (params, traced), others = eqx.partition((params, extra), is_traced)

        def step(grads: Updates, params: Params, state: State, **extra: Any) -> tuple[Params, State]:
            model, given = eqx.combine((params, extra), others)
            new, state = self.optimizer.step(grads, state, model, **given)
            return eqx.filter(new, eqx.is_array), state

        # JAX sorts arguments by name: in the order of the results.
        donated = jax.jit(step, donate_argnames=("params", "state"))
        return donated.lower(grads=grads, params=params, state=state, **traced)


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
