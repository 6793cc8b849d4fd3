"""Transforms whose numbers follow schedules, or live in the state."""

from typing import Any, ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu

from .._module import AbstractState, nested, shared
from .._numerics import default_float, safe_increment
from .._random import is_key_data
from .._schedule import is_schedule, resolve
from .._transform import AbstractTransform
from .._types import Count, Params, State, Updates
from .._wrapper import AbstractWrapper


class OptimizerState(AbstractState):
    """The number of steps done, by which schedules go, and the state of the transform inside."""

    step: Count = shared()
    inner: State = nested()


class Scheduled(AbstractWrapper):
    """Lets schedules stand in the fields of a bare transform or a chain.

        Scheduled(Chain(ScaleByAdam(b1=schedules.Linear(0.8, 0.95, 1000)), ScaleByLearningRate(1e-3)))

    Before every update each schedule in `inner` is replaced by its number at that step. Optimizers do this for
    themselves.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform

    counts_steps: ClassVar[bool] = True
    holds: ClassVar[tuple[str, str]] = ("inner", "inner")

    def init(self, params: Params) -> OptimizerState:
        """The inner state, and a counter at zero."""
        step = jnp.zeros((), jnp.int32)
        return OptimizerState(step, resolve(self.inner, step).init(params))

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """One step of the inner transform, with the numbers in force at this step."""
        updates, inner = resolve(self.inner, state.step).update(updates, state.inner, params, **extra)
        return updates, OptimizerState(safe_increment(state.step), inner)

    def at(self, state: OptimizerState) -> "Scheduled":
        """This transform with every schedule replaced by its number for the next step."""
        return Scheduled(resolve(self.inner, state.step).at(state.inner))


class InjectedState(AbstractState):
    """The state of `Injected`: the inner transform itself with its numbers as arrays, and its state.

    `state.hyperparameters.learning_rate` reads a number, and `equinox.tree_at(lambda s:
    s.hyperparameters.learning_rate, state, 3e-4)` changes it.
    """

    count: Count = shared()
    hyperparameters: Any = shared()
    inner_state: State = nested()


class Injected(AbstractWrapper):
    """Carries the numbers of a transform in its state, for callers that hold the transform itself static.

    The numbers in the state rule. A schedule still rules its own field: there the state shows the number that was in
    force at the last step. Where the optimizer itself can be passed around, `replace` is simpler.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform

    counts_steps: ClassVar[bool] = True

    def init(self, params: Params) -> InjectedState:
        """A copy of the numbers, and the inner state."""
        count = jnp.zeros((), jnp.int32)
        # A copy, so that donating the state does not delete the numbers of the transform.
        inner = jtu.tree_map(lambda x: jnp.array(x, _dtype(x)), resolve(self.inner, count))
        return InjectedState(count, inner, inner.init(params))

    def update(
        self, updates: Updates, state: InjectedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, InjectedState]:
        """One step of the transform with the numbers in the state."""
        inner = self._in_force(state)
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        return updates, InjectedState(safe_increment(state.count), inner, inner_state)

    def at(self, state: InjectedState) -> "Injected":
        """This transform with the numbers that are in force at the next step."""
        return Injected(self._in_force(state).at(state.inner_state))

    def _in_force(self, state: InjectedState) -> Any:
        def ruling(own: Any, stored: Any) -> Any:
            return own if is_schedule(own) else stored

        numbers = jtu.tree_map(ruling, self.inner, state.hyperparameters, is_leaf=is_schedule)
        return jtu.tree_map(lambda x: jnp.asarray(x, _dtype(x)), resolve(numbers, state.count))


def _dtype(x: Any) -> Any:
    return x.dtype if is_key_data(x) else default_float()
