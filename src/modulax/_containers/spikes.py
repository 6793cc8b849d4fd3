"""`SkipSpikes`: steps whose gradient norm or loss is far above that of the last steps are not taken."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._protocol.container import required_part
from .._protocol.fields import Number, OptionalNumber, choice, number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock, Effect, Move
from .._support.arithmetic import default_float, largest_float, loss_of, safe_increment, safe_sqrt
from .._support.checks import NON_NEGATIVE, POSITIVE
from .._support.module import AbstractState, first_values, nested, shared, with_fields
from .._support.types import Count, Params, State, Updates
from .._transforms.running_norm import present, pushed
from ..tree._math import norm
from .gate import AbstractGate, hidden_infinities, step_unless_bad
from .order import refuse_examples

T = TypeVar("T")

_SMALLEST_DEVIATION = 1e-6  # relative to the mean: that of rounding, where all values are equal


class SkipSpikesState(AbstractState):
    """State of `SkipSpikes`.

    `skipped` is the number of steps that were skipped, `consecutive_skips` the number of those since the last step that
    was taken. `measurements` holds the last norm or loss and the threshold that it was compared with, such as `norm`
    and `norm_threshold`; a NaN is recorded as infinity, and before the window is full, the threshold is the largest
    finite number. `window` holds the last finite values of each, the newest at the end, and `count` is the number of
    finite values so far.
    """

    skipped: Count = shared(starts=0, metric=True)
    consecutive_skips: Count = shared(starts=0, metric=True)
    measurements: dict[str, Float[Array, ""]] = shared(metric=True)
    window: dict[str, Float[Array, " window"]] = shared()
    count: Count = shared(starts=0)
    inner_state: State = nested()


class SkipSpikes(AbstractGate):
    r"""Skips loss spikes: steps whose gradient norm or loss is far above the mean of the last steps.

        SkipSpikes(AdamW(1e-3), window=128, factor=6.0)
        SkipSpikes(AdamW(1e-3), by="both")  # `update` then needs the loss, `value=...`

    A step is skipped if its value $x$, the global norm of the gradient or the loss, exceeds

    $$
    \bar x + k s, \qquad \bar x = \frac{1}{n} \sum_{i=1}^n x_i, \qquad
        s^2 = \frac{1}{n - 1} \sum_{i=1}^n (x_i - \bar x)^2
    $$

    over the last $n$ values: the updates are zero and the inner state stays, so neither parameters nor moments are
    affected. Infinite and NaN values are always skipped; otherwise nothing is skipped before the window is full. With
    `by="norm"`, a NaN in the loss alone does not skip the step.

    The value of a skipped step enters the window like any other, unless it is infinite or NaN. So a lasting change of
    level is accepted after about $n / (1 + k^2)$ steps, 4 with the defaults. Until a spike has left the window, the
    threshold is higher. If everything is skipped because the parameters have diverged, `consecutive_skips` grows:
    watch it with `metrics(state)`.

    With `by="both"` and `warmup_steps=63` this is the rule of OLMo-core and MaxText. Levanter divides by $n$ instead
    of $n - 1$ in $s$.

    Args:
        inner: the inner transform.
        window: number of values to compare with.
        factor: $k$, the number of standard deviations above the mean; a schedule follows the number of finite values so
            far.
        by: `"norm"` for the global norm of the gradient, `"loss"` for the extra argument `value`, or `"both"`, to skip
            a step if either is a spike.
        warmup_steps: number of values after which steps are skipped; by default `window`.

    References:
        OLMo-core,
        [skip_step_optimizer.py](https://github.com/allenai/OLMo-core/blob/main/src/olmo_core/optim/skip_step_optimizer.py).
    """

    inner: AbstractTransform = required_part()
    window: int = eqx.field(static=True, default=128, metadata={"least": 2})
    factor: Number = number(6.0, needs=POSITIVE)
    by: Literal["norm", "loss", "both"] = choice(("norm", "loss", "both"), "norm", kw_only=False)
    warmup_steps: OptionalNumber = number(None, needs=NON_NEGATIVE, optional=True)

    clock: ClassVar[Clock] = "pace"

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The loss, unless the steps are judged by the norm alone."""
        return () if self.by == "norm" else ("value",)

    def _effect(self, tree: Params) -> Effect:
        del tree
        return Effect(warnings=hidden_infinities("SkipSpikes", self.inner))

    def check(self) -> None:
        if self.by != "loss":
            refuse_examples("SkipSpikes", self.inner, "measures the norm of the gradients")

    def init(self, params: Params) -> SkipSpikesState:
        """Return the inner state, counters at zero, and an empty window."""
        zeros = {name: jnp.zeros((), default_float()) for name in self._names()}
        return SkipSpikesState(
            **first_values(SkipSpikesState, self),
            measurements=_labelled(zeros, {name: largest_float() for name in zeros}),
            window={name: jnp.zeros(self.window, default_float()) for name in zeros},
            inner_state=self.inner.init(params),
        )

    def gate(self, updates: Updates, state: SkipSpikesState, move: Move[T]) -> tuple[T, SkipSpikesState]:
        """Run one step of the inner transform unless the norm or the loss is a spike."""
        now = self.resolved(state)
        measured = {name: self._measure(name, updates, move.extra) for name in self._names()}
        thresholds = {name: now._threshold(state.window[name], state.count) for name in measured}
        is_finite = jnp.array([jnp.isfinite(x) for x in measured.values()]).all()
        # A loss of minus infinity is no spike, and skipped too.
        is_taken = is_finite & jnp.array([x <= thresholds[name] for name, x in measured.items()]).all()
        moved, inner_state = step_unless_bad(is_taken, self.inner, updates, state.inner_state, move)
        # A spike enters the window too, so that a lasting rise of the norm becomes the rule. NaN would stay in the mean
        # for a whole window.
        window = {name: jnp.where(is_finite, pushed(x, measured[name]), x) for name, x in state.window.items()}
        return moved, SkipSpikesState(
            skipped=jnp.where(is_taken, state.skipped, safe_increment(state.skipped)),
            consecutive_skips=jnp.where(is_taken, 0, safe_increment(state.consecutive_skips)),
            measurements=_labelled(measured, thresholds),
            window=window,
            count=jnp.where(is_finite, safe_increment(state.count), state.count),
            inner_state=inner_state,
        )

    def resolved(self, state: SkipSpikesState) -> "SkipSpikes":
        """Return this container with its numbers at their current values.

        Args:
            state: the state of this container.
        """
        numbers = resolve((self.factor, self.warmup_steps), state.count)
        return with_fields(self, factor=numbers[0], warmup_steps=numbers[1])

    def _names(self) -> tuple[str, ...]:
        return ("norm", "loss") if self.by == "both" else (self.by,)

    def _measure(self, name: str, updates: Updates, extra: Mapping[str, Any]) -> Float[Array, ""]:
        x = norm(updates).astype(default_float()) if name == "norm" else loss_of(extra["value"])
        # Either is skipped, but a NaN in the state would stop a run under `jax_debug_nans`.
        return jnp.where(jnp.isnan(x), jnp.inf, x)

    def _threshold(self, window: Float[Array, " window"], count: Count) -> Float[Array, ""]:
        """The threshold of a spike: a larger value is one."""
        least = self.window if self.warmup_steps is None else self.warmup_steps
        # A sample of one value has no deviation.
        is_early = count.astype(default_float()) < jnp.maximum(least, 2)
        largest = jnp.max(jnp.abs(window))
        largest = jnp.where(largest > 0, largest, 1)  # with which the squares don't overflow
        x, n = window / largest, jnp.clip(count, 2, self.window).astype(window.dtype)
        mean = jnp.sum(x) / n  # empty slots are zero
        squares = jnp.where(present(window, count), (x - mean) ** 2, 0)
        deviation = jnp.maximum(safe_sqrt(jnp.sum(squares) / (n - 1)), _SMALLEST_DEVIATION * jnp.abs(mean))
        threshold = jnp.minimum(largest * (mean + self.factor * deviation), largest_float())
        return jnp.where(is_early, largest_float(), threshold)


def _labelled(measured: Mapping[str, Array], thresholds: Mapping[str, Array]) -> dict[str, Array]:
    return {**measured, **{f"{name}_threshold": x for name, x in thresholds.items()}}
