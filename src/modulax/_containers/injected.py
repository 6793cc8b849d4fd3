"""Transforms whose numbers live in the state."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import DTypeLike

from .._protocol.container import AbstractContainer, part
from .._protocol.in_force import advance, in_force, schedule_states
from .._protocol.schedule import is_schedule
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import default_float, safe_increment
from .._support.checks import listing, suggestion
from .._support.keys import is_key_data
from .._support.module import AbstractState, nested, shared, with_fields
from .._support.types import Count, Params, State, Updates
from ..tree._paths import dotted, matches


class InjectedState(AbstractState):
    """The state of `Injected`: the inner transform itself with its numbers as arrays, and its state.

    `state.hyperparameters.learning_rate` reads a number, and `equinox.tree_at(lambda s:
    s.hyperparameters.learning_rate, state, 3e-4)` changes it. `schedule_states` holds the states of stateful schedules
    by the dotted path of the number that each is; it is None where there is none.
    """

    count: Count = shared()
    hyperparameters: Any = shared()
    inner_state: State = nested()
    schedule_states: dict[str, State] | None = shared(None)


def _as_names(x: Any) -> tuple[str, ...]:
    return (x,) if isinstance(x, str) else tuple(x)


class Injected(AbstractContainer):
    """Carries the numbers of a transform in its state, for callers that hold the transform itself static.

    The numbers in the state rule, and may be overwritten with arrays or plain numbers. A schedule still rules its own
    field: there the state shows the number that was in force at the last step. Where the optimizer itself can be passed
    around, `replace` is simpler.

    Args:
        inner: the transform.
        static_args: the numbers that stay out of the state, where it has None for them: names of fields, dotted paths,
            the ends of these, or shell-style patterns. What the transform has there rules.
        hyperparam_dtype: the dtype in which the state keeps the numbers; by default JAX's own for floats. Whatever it
            is, they change no dtype of a parameter, nor do parameters change theirs.
    """

    inner: AbstractTransform = part()
    static_args: tuple[str, ...] = eqx.field(static=True, default=(), converter=_as_names)
    hyperparam_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    clock: ClassVar[Clock] = "keeper"

    def check(self) -> None:
        if self.hyperparam_dtype is not None and not jnp.issubdtype(self.hyperparam_dtype, jnp.floating):
            raise ValueError(
                f"`Injected(hyperparam_dtype=...)` must be a floating dtype such as `jnp.float32`, got "
                f"{self.hyperparam_dtype!r}."
            )
        paths = list(self.inner.addresses()) if self.static_args else []
        for name in self.static_args:
            if not any(_fits(path, name) for path in paths):
                raise ValueError(
                    f"`Injected(static_args=...)`: there is no number `{name}`.{suggestion(name, paths)} "
                    f"`{type(self.inner).__name__}` has {listing(paths)}."
                )

    def init(self, params: Params) -> InjectedState:
        """A copy of the numbers, and the inner state."""
        count = jnp.zeros((), jnp.int32)
        states = schedule_states(self.inner)
        inner = in_force(self.inner, count, states)
        # A copy, so that donating the state does not delete the numbers of the transform.
        kept = jtu.tree_map(jnp.array, self._kept(inner))
        return InjectedState(count, kept, self._merged(kept, inner).init(params), states)

    def update(
        self, updates: Updates, state: InjectedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, InjectedState]:
        """One step of the transform with the numbers in the state."""
        inner = self._now(state, extra)
        kept = self._kept(inner)
        updates, inner_state = self._merged(kept, inner).update(updates, state.inner_state, params, **extra)
        states = advance(self.inner, state.count, state.schedule_states, extra)
        return updates, InjectedState(safe_increment(state.count), kept, inner_state, states)

    def resolved(self, state: InjectedState) -> "Injected":
        """Return this container with the hyperparameters in the state, and schedules at their current values."""
        inner = self._now(state, None)
        return with_fields(self, inner=self._merged(self._kept(inner), inner))

    def _now(self, state: InjectedState, extra: Any) -> AbstractTransform:
        """The inner transform with the numbers of the state, and of schedules those of this step."""

        def ruling(own: Any, stored: Any) -> Any:
            return own if stored is None or is_schedule(own) else stored

        numbers = jtu.tree_map(ruling, self.inner, state.hyperparameters, is_leaf=is_schedule)
        return in_force(numbers, state.count, state.schedule_states, extra)

    def _kept(self, inner: AbstractTransform) -> AbstractTransform:
        """What of the numbers the state keeps, in the dtype in which it does."""

        def kept(path: Any, x: Any) -> Any:
            if any(_fits(dotted(path), name) for name in self.static_args):
                return None
            return jnp.asarray(x, _dtype(x, self.hyperparam_dtype))

        return jtu.tree_map_with_path(kept, inner)

    def _merged(self, kept: AbstractTransform, inner: AbstractTransform) -> AbstractTransform:
        """The inner transform to call: the numbers as they are kept, the others as they were, all of one dtype."""

        def merged(x: Any, own: Any) -> Any:
            x = own if x is None else x
            return None if x is None else jnp.asarray(x, _dtype(x, None))

        return jtu.tree_map(merged, kept, inner, is_leaf=lambda x: x is None)


def _fits(path: str, name: str) -> bool:
    """Whether a name stands for the number at a path, or for the schedule or the transform that it is in."""
    keys = path.split(".")
    return any(matches(".".join(keys[:n]), "*." + name) for n in range(1, len(keys) + 1))


def _dtype(x: Any, wanted: DTypeLike | None) -> Any:
    return x.dtype if is_key_data(x) else wanted or default_float()


def inject_hyperparams(
    inner_factory: Callable[..., AbstractTransform],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., Injected]:
    """`Injected` by the name and the call that it has in optax.

        optimizer = inject_hyperparams(AdamW)(learning_rate=0.1)  # Injected(AdamW(learning_rate=0.1))

    Args:
        inner_factory: makes a transform, such as the class of an optimizer.
        static_args: see `Injected`.
        hyperparam_dtype: see `Injected`.
    """

    @functools.wraps(inner_factory, updated=())
    def make(*args: Any, **kwargs: Any) -> Injected:
        return Injected(inner_factory(*args, **kwargs), _as_names(static_args), hyperparam_dtype)

    return make
