"""Containers that run a transform at some steps only, such as those with finite gradients."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._protocol.container import AbstractContainer, required_part
from .._protocol.fields import Number, required_number
from .._protocol.transform import AbstractTransform, Effect, Move, zeros_returned
from .._support.arithmetic import default_float, safe_increment
from .._support.checks import WHOLE_OR_ZERO, boolean
from .._support.module import AbstractState, first_values, nested, shared
from .._support.tracing import call_user
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from ..tree._math import all_finite
from .gate import AbstractGate, hidden_infinities, step_if, step_unless_bad

T = TypeVar("T")


class ApplyIfFiniteState(AbstractState):
    """State of `ApplyIfFinite`: counters of non-finite updates, and the inner state.

    `notfinite_count` is the number of consecutive updates that were skipped, `last_finite` whether the last update was
    finite, and `total_notfinite` the number of all non-finite updates so far.
    """

    optax_fields = ("notfinite_count", "last_finite", "total_notfinite", "inner_state")

    notfinite_count: Count = shared(starts=0, metric=True)
    last_finite: Bool[Array, ""] = shared(starts=True)
    total_notfinite: Count = shared(starts=0, metric=True)
    inner_state: State = nested()


class ApplyIfFinite(AbstractGate):
    """Skips steps whose gradients contain NaN or infinity: the updates are zero and the inner state stays.

        ApplyIfFinite(AdamW(1e-3), max_consecutive_errors=5)

    A bad batch then affects neither the parameters nor the state. After `max_consecutive_errors` bad ones in a row, the
    next one is applied, so that the error becomes visible in the parameters, and the count of bad ones is reset. With
    an infinite limit, none is ever applied; watch `state.total_notfinite` in that case.

    Args:
        inner: the inner transform.
        max_consecutive_errors: maximum number of consecutive steps that are skipped.
    """

    inner: AbstractTransform = required_part()
    max_consecutive_errors: Number = required_number(needs=WHOLE_OR_ZERO)

    def _effect(self, tree: Params) -> Effect:
        del tree
        return Effect(warnings=hidden_infinities("ApplyIfFinite", self.inner))

    def init(self, params: Params) -> ApplyIfFiniteState:
        """Return the inner state, and counters at zero."""
        return ApplyIfFiniteState(**first_values(ApplyIfFiniteState, self), inner_state=self.inner.init(params))

    def gate(self, updates: Updates, state: ApplyIfFiniteState, move: Move[T]) -> tuple[T, ApplyIfFiniteState]:
        """Run one step of the inner transform if the updates are finite."""
        is_finite = all_finite(updates)
        count = jnp.where(is_finite, 0, safe_increment(state.notfinite_count))
        gives_up = count.astype(default_float()) > self.max_consecutive_errors
        is_open = is_finite | gives_up
        moved, inner_state = step_unless_bad(is_open, self.inner, updates, state.inner_state, move)
        return moved, ApplyIfFiniteState(
            # The limit applies to every run of errors. In optax, all later ones pass once it is reached.
            notfinite_count=jnp.where(gives_up, 0, count),
            last_finite=is_finite,
            total_notfinite=jnp.where(is_finite, state.total_notfinite, safe_increment(state.total_notfinite)),
            inner_state=inner_state,
        )


class AbstractConditional(AbstractContainer):
    """A container that runs its part where a condition on the step holds."""

    inner: AbstractTransform = required_part()
    should_transform_fn: Callable[..., Any] = eqx.field(static=True)
    forward_extra_args: bool = eqx.field(static=True, default=False)

    is_arraywise: ClassVar[bool] = True

    def check(self) -> None:
        if not callable(self.should_transform_fn):
            raise ValueError(
                f"`{type(self).__name__}(should_transform_fn=...)` must be a function of the step, got "
                f"{self.should_transform_fn!r}. Write `lambda step: step < 1000`."
            )

    def _is_time(self, step: Array, extra: Mapping[str, Any]) -> Array:
        given = extra if self.forward_extra_args else {}
        call = f"`{type(self).__name__}(should_transform_fn=...)`"
        return boolean(call, call_user(self.should_transform_fn, step, **given))


class ConditionallyTransformState(AbstractState):
    """State of `ConditionallyTransform`: the state of the inner transform, and the number of calls."""

    optax_fields = ("inner_state", "step")

    inner_state: State = nested()
    step: Count = shared()


class ConditionallyTransform(AbstractConditional):
    """Runs a transform only if a condition on the step holds; otherwise the updates pass through unchanged.

        ConditionallyTransform(AddNoise(0.01, 0.55, seed), lambda step: step < 1000)

    The schedules and counters of the inner transform count only the steps at which it ran. To return zeros at the other
    steps, use `ConditionallyMask`.

    Args:
        inner: the inner transform.
        should_transform_fn: function of the number of previous calls that returns whether to run the inner transform,
            traced once: data that changes must be an extra argument.
        forward_extra_args: whether to pass the extra arguments of `update` to `should_transform_fn`, by name.

    Raises:
        ValueError: if the inner transform takes per-example gradients, which cannot pass through.
    """

    def check(self) -> None:
        super().check()
        if self.inner.example_axes:
            raise ValueError(
                "`ConditionallyTransform` returns the updates unchanged when its transform does not run, but this one "
                "takes per-example gradients. Write `ConditionallyMask(...)`, which returns zeros then."
            )

    def init(self, params: Params) -> ConditionallyTransformState:
        """Return the inner state, and a step count of zero."""
        return ConditionallyTransformState(self.inner.init(params), jnp.zeros((), jnp.int32))

    def update(
        self, updates: Updates, state: ConditionallyTransformState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ConditionallyTransformState]:
        """Run one step of the inner transform if the condition holds; else return the updates unchanged."""
        is_time = self._is_time(state.step, extra)
        zeros = zeros_returned(self.inner, updates, state.inner_state, params, extra)
        # Both branches of a `cond` must return the same dtypes, and the transform may widen its updates.
        unchanged = jtu.tree_map(lambda u, zero: u.astype(zero.dtype), updates, zeros)
        updates, inner_state = cond(
            is_time,
            lambda: self.inner.update(updates, state.inner_state, params, **extra),
            lambda: (unchanged, state.inner_state),
        )
        return updates, ConditionallyTransformState(inner_state, safe_increment(state.step))


class ConditionallyMaskState(AbstractState):
    """State of `ConditionallyMask`: the number of calls, and the state of the inner transform."""

    optax_fields = ("step", "inner_state")

    step: Count = shared()
    inner_state: State = nested()


class ConditionallyMask(AbstractConditional, AbstractGate):
    """Runs a transform only if a condition on the step or the loss holds; otherwise the updates are zero.

        ConditionallyMask(AdamW(1e-3), lambda step, value, **extra: value < 10.0, forward_extra_args=True)

    The schedules and counters of the inner transform count only the steps at which it ran. To return the updates
    unchanged at the other steps, use `ConditionallyTransform`.

    Args:
        inner: the inner transform.
        should_transform_fn: function of the number of previous calls that returns whether to run the inner transform,
            traced once: data that changes must be an extra argument.
        forward_extra_args: whether to pass the extra arguments of `update` to `should_transform_fn`, by name.
    """

    def init(self, params: Params) -> ConditionallyMaskState:
        """Return a step count of zero, and the inner state."""
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def gate(self, updates: Updates, state: ConditionallyMaskState, move: Move[T]) -> tuple[T, ConditionallyMaskState]:
        """Run one step of the inner transform if the condition holds; else return zeros."""
        is_time = self._is_time(state.step, move.extra)
        moved, inner_state = step_if(is_time, self.inner, updates, state.inner_state, move)
        return moved, ConditionallyMaskState(safe_increment(state.step), inner_state)
