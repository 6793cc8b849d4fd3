"""`step`: one training step as one compiled program, and the same one compiled ahead of time."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from .._support.arithmetic import is_numeric_array
from .._support.failures import located
from .._support.gathering import are_divided, gathered_into
from .._support.placement import placed_like
from .._support.types import P, Params, S, State, Updates
from ..tree._align import paired, refuse_integers, refuse_numbers
from ..tree._leaves import arrays_of, with_arrays
from ..tree._math import trainable
from ..tree._state import owners
from .apply_updates import applied, sums
from .entry import as_written
from .extra_arguments import refuse_hyperparameters
from .mistakes import explaining_state
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
        # On the gradients as they were given, because `trainable` drops integers.
        refuse_integers(params, grads, f"{cls.__name__}.step")
        grads = trainable(grads)
        refuse_numbers(params, grads, f"{cls.__name__}.step")
        trained = paired(trainable(params), grads, f"{cls.__name__}.step", per_example=transform.example_axes)
        # The branches of a `cond` return arrays alone, and a model holds functions.
        kept = arrays_of(params)
        with explaining_state(f"{cls.__name__}.step", as_written(cls.update), state), located(cls.__name__, "step"):
            yes, no = jnp.ones((), bool), jnp.zeros((), bool)  # whether the parameters move
            move = Move(trained, extra, lambda updates: (arrays_of(applied(sums, params, updates)), yes), (kept, no))
            (moved, is_new), new = transform._take_step(grads, state, move)
            if are_divided(kept):  # matching state and parameters takes time
                moved = gathered_into(kept, moved, _beside(params, state), is_new, is_certain=is_new is yes)
        # Out of a `cond`, XLA for GPU would return whole arrays.
        return with_arrays(params, placed_like(moved, kept)), placed_like(new, state)

    return Program(run, f"{cls.__name__}.step", models=(0, 1), donated=(1, 2) if donate else (), result=1)


def _beside(params: Params, state: State) -> list[Any]:
    """For each array of the parameters the first one of its shape in the state, or None."""
    found = dict[int | None, Any]()
    for owner, x in zip(owners(state, params, of_same_shape=True), jax.tree.leaves(state), strict=True):
        found.setdefault(owner, x)
    return [found.get(i) for i, p in enumerate(jax.tree.leaves(params)) if is_numeric_array(p)]


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
