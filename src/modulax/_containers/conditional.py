"""Containers whose transform does not run at every step."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Number, number, static
from .._protocol.transform import AbstractTransform, zeros_returned
from .._support.arithmetic import default_float, safe_increment
from .._support.checks import NON_NEGATIVE, boolean
from .._support.module import AbstractState, nested, shared
from .._support.types import Count, Params, State, Updates
from ..tree._math import all_finite


def _run_if(
    is_open: Array,
    inner: AbstractTransform,
    updates: Updates,
    inner_state: State,
    params: Params | None,
    extra: Mapping[str, Any],
    otherwise: Updates,
) -> tuple[Updates, State]:
    """One step of the transform; or, where the gate is shut, these updates, and the transform does not run."""
    return jax.lax.cond(
        is_open,
        lambda: inner.update(updates, inner_state, params, **extra),
        lambda: (otherwise, inner_state),
    )


class ApplyIfFiniteState(AbstractState):
    """The state of `ApplyIfFinite`.

    `notfinite_count` is the number of bad updates that were ignored since the last step, `last_finite` whether the last
    update was good, and `total_notfinite` how many have been bad altogether.
    """

    notfinite_count: Count = shared()
    last_finite: Bool[Array, ""] = shared()
    total_notfinite: Count = shared()
    inner_state: State = nested()


class ApplyIfFinite(AbstractContainer):
    """Ignores updates with a NaN or an infinity in them: the step is zero, and the transform does not run.

        ApplyIfFinite(AdamW(1e-3), max_consecutive_errors=5)

    A bad batch then ruins neither parameters nor state. Where more than `max_consecutive_errors` come one after the
    other, waiting does not help: the next bad update is taken as it is, which shows in the parameters, and counting
    begins anew. With an infinite limit no bad one is ever taken; watch `state.total_notfinite` then.

    Args:
        inner: the transform.
        max_consecutive_errors: how many bad updates in a row are ignored.
    """

    inner: AbstractTransform = part()
    max_consecutive_errors: Number = number(needs=NON_NEGATIVE)

    def init(self, params: Params) -> ApplyIfFiniteState:
        """The inner state, and nothing bad so far."""
        return ApplyIfFiniteState(
            notfinite_count=jnp.zeros((), jnp.int32),
            last_finite=jnp.ones((), bool),
            total_notfinite=jnp.zeros((), jnp.int32),
            inner_state=self.inner.init(params),
        )

    def update(
        self, updates: Updates, state: ApplyIfFiniteState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ApplyIfFiniteState]:
        """One step of the inner transform if the updates are finite."""
        is_finite = all_finite(updates)
        count = jnp.where(is_finite, 0, safe_increment(state.notfinite_count))
        gives_up = count.astype(default_float()) > self.max_consecutive_errors
        updates, inner_state = _run_if(
            is_finite | gives_up,
            self.inner,
            updates,
            state.inner_state,
            params,
            extra,
            zeros_returned(self.inner, updates),
        )
        return updates, ApplyIfFiniteState(
            notfinite_count=jnp.where(gives_up, 0, count),
            last_finite=is_finite,
            total_notfinite=jnp.where(is_finite, state.total_notfinite, safe_increment(state.total_notfinite)),
            inner_state=inner_state,
        )


class ConditionallyTransformState(AbstractState):
    """The state of `ConditionallyTransform`: that of the inner transform, and the number of calls so far."""

    inner_state: State = nested()
    step: Count = shared()


class ConditionallyTransform(AbstractContainer):
    """Runs a transform at some steps; at the others the updates pass through unchanged.

        ConditionallyTransform(AddNoise(0.01, 0.55, seed), lambda step: step < 1000)

    The schedules of the inner transform, and whatever else it counts, go by the steps at which it ran. To make no step
    at all at the others, use `ConditionallyMask`.

    Args:
        inner: the transform.
        should_transform_fn: a function of the number of calls so far, from 0, that returns whether to run it now.
        forward_extra_args: whether that function is given the extra arguments of `update` too, by name.
    """

    inner: AbstractTransform = part()
    should_transform_fn: Callable[..., Any] = static()
    forward_extra_args: bool = eqx.field(static=True, default=False)

    def check(self) -> None:
        if self.inner.example_axes:
            raise ValueError(
                "`ConditionallyTransform` lets the updates pass when its transform does not run, but this one takes "
                "the updates of each example by itself. Write `ConditionallyMask(...)`, which makes no step then."
            )

    def init(self, params: Params) -> ConditionallyTransformState:
        """The inner state, and a counter at zero."""
        return ConditionallyTransformState(self.inner.init(params), jnp.zeros((), jnp.int32))

    def update(
        self, updates: Updates, state: ConditionallyTransformState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ConditionallyTransformState]:
        """One step of the inner transform if it is time for it, else the updates as they are."""
        is_time = _is_time(self, state.step, extra)
        updates, inner_state = _run_if(is_time, self.inner, updates, state.inner_state, params, extra, updates)
        return updates, ConditionallyTransformState(inner_state, safe_increment(state.step))


class ConditionallyMaskState(AbstractState):
    """The state of `ConditionallyMask`: the number of calls so far, and that of the inner transform."""

    step: Count = shared()
    inner_state: State = nested()


class ConditionallyMask(AbstractContainer):
    """Runs a transform at some steps; at the others the updates become zero, so that no step is made.

        ConditionallyMask(AdamW(1e-3), lambda step, value, **extra: value < 10.0, forward_extra_args=True)

    The schedules of the inner transform, and whatever else it counts, go by the steps at which it ran. To let the
    updates pass at the others, use `ConditionallyTransform`.

    Args:
        inner: the transform.
        should_transform_fn: a function of the number of calls so far, from 0, that returns whether to run it now.
        forward_extra_args: whether that function is given the extra arguments of `update` too, by name.
    """

    inner: AbstractTransform = part()
    should_transform_fn: Callable[..., Any] = static()
    forward_extra_args: bool = eqx.field(static=True, default=False)

    def init(self, params: Params) -> ConditionallyMaskState:
        """A counter at zero, and the inner state."""
        return ConditionallyMaskState(jnp.zeros((), jnp.int32), self.inner.init(params))

    def update(
        self, updates: Updates, state: ConditionallyMaskState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ConditionallyMaskState]:
        """One step of the inner transform if it is time for it, else zeros."""
        zeros = zeros_returned(self.inner, updates)
        is_time = _is_time(self, state.step, extra)
        updates, inner_state = _run_if(is_time, self.inner, updates, state.inner_state, params, extra, zeros)
        return updates, ConditionallyMaskState(safe_increment(state.step), inner_state)


def _is_time(transform: ConditionallyTransform | ConditionallyMask, step: Array, extra: Mapping[str, Any]) -> Array:
    given = extra if transform.forward_extra_args else {}
    call = f"`{type(transform).__name__}(should_transform_fn=...)`"
    return boolean(call, transform.should_transform_fn(step, **given))
