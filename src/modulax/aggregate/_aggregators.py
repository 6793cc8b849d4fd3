"""Means of per-example updates, over one batch or several."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, PyTree

from .._plugin.arrays import State
from ..authoring import (
    AbstractLeafwise,
    AbstractState,
    Count,
    EmptyState,
    Params,
    Shared,
    Updates,
    like_params,
    shared,
    zeros_in,
)
from ..numerics import at_least_float32, safe_increment
from ._base import AbstractOverAxes, as_axes, check_steps, means


class AccumulateAvgUpdatesState(AbstractState):
    """The state of `AccumulateAvgUpdates`: the mean so far, the number of batches in it, and whether it was complete.

    The counters are None for a single accumulation step.
    """

    optax_fields = ("micro_step", "ready", "avg_grad")

    avg_grad: PyTree = like_params(exact=True)
    micro_step: Shared[Count] = shared(None, kw_only=True, starts=0)
    ready: Shared[Bool[Array, ""]] = shared(None, kw_only=True, starts=False)


class _Now(NamedTuple):
    """The number of batches including this one, and the new shared state."""

    n: Array
    micro_step: Array
    ready: Array


class AccumulateAvgUpdates(AbstractLeafwise):
    r"""Gradient accumulation: the mean of the updates of $k$ batches at every $k$-th step, and zeros in between.

    With $m$ the number of batches since the last complete mean, including this one:

    $$
    a \leftarrow a + (g - a) / m, \qquad
    u = \begin{cases} a, \text{ and then } a \leftarrow 0 & m = k \\ 0 & m < k \end{cases}
    $$

    The transforms that follow in a chain receive the zeros. `Process` skips them in between; so does `MultiSteps`,
    which wraps an optimizer and takes a schedule of $k$.

    Args:
        accumulation_steps: $k$, number of batches to average. With 1 there is no state.
    """

    _keeps = "gradients"

    accumulation_steps: int = eqx.field(static=True)

    def check(self) -> None:
        check_steps(self, self.accumulation_steps)

    def init_leaf(self, p):
        if self.accumulation_steps == 1:
            return EmptyState()
        return AccumulateAvgUpdatesState(avg_grad=zeros_in(p, at_least_float32(p.real.dtype)))

    def survey(self, count, state, updates, params, **extra):
        del count, updates, params, extra
        if self.accumulation_steps == 1:
            return None
        n = safe_increment(state.micro_step)
        is_last = n >= self.accumulation_steps
        return _Now(n, jnp.where(is_last, 0, n), is_last)

    def update_leaf(self, now, g, s, p):
        del p
        if now is None:
            return g, s
        mean = s.avg_grad + (g - s.avg_grad) / now.n.astype(g.dtype)
        zero = jnp.zeros_like(mean)
        new_state = AccumulateAvgUpdatesState(avg_grad=jnp.where(now.ready, zero, mean))
        return jnp.where(now.ready, mean, zero), new_state


class AbstractAveraging(AbstractOverAxes):
    """The mean over the examples of one batch or several."""

    accumulation_steps: eqx.AbstractVar[int]

    def init(self, params: Params) -> State:
        """Return the state of `AccumulateAvgUpdates`."""
        return AccumulateAvgUpdates(self.accumulation_steps).init(params)

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """Return the mean of all examples after the last batch, and zeros before."""
        mean = means(updates, self.example_axes) if self.example_axes else updates
        mean, state = AccumulateAvgUpdates(self.accumulation_steps).update(mean, state, params, **extra)
        return jtu.tree_map(lambda m, g: m.astype(g.dtype), mean, updates), {}, state


class AveragePerElementUpdates(AbstractAveraging):
    r"""The mean of per-example updates, $u = \frac 1 n \sum_i g_i$.

    Args:
        per_elt_axis: example axis, or several.
    """

    per_elt_axis: int | Sequence[int] = eqx.field(static=True, default=0, converter=as_axes)

    accumulation_steps: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride]


def _axes_or_none(axes: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if axes is None else as_axes(axes)


class AverageIncrementallyUpdates(AbstractAveraging):
    """The mean over the examples of several batches: `AveragePerElementUpdates`, then `AccumulateAvgUpdates`.

    Args:
        per_elt_axis: example axis, or several. None if the updates are already those of a whole batch.
        accumulation_steps: number of batches to average. With 1 there is no state.
    """

    per_elt_axis: int | Sequence[int] | None = eqx.field(static=True, converter=_axes_or_none)
    accumulation_steps: int = eqx.field(static=True)

    def check(self) -> None:
        check_steps(self, self.accumulation_steps)
