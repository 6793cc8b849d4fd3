"""Reduce on plateau: a learning rate that is reduced when the loss stops improving."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.transform import Effect
from .._support.arithmetic import default_float, largest_float, loss_of, safe_increment
from .._support.checks import FRACTION, NEVER_NEGATIVE, NON_NEGATIVE, PROPER_FRACTION, WHOLE, WHOLE_OR_ZERO
from .._support.module import AbstractState, counter, shared
from .._support.types import Count, Shared


class ReduceLROnPlateauState(AbstractState):
    """State of `ReduceOnPlateau`.

    `scale` is the current factor, `best_value` the smallest mean so far, `plateau_count` the number of means in a row
    without improvement, and `cooldown_count` the number of means left in the cooldown. `count` and `avg_value` are
    number and mean of the values accumulated so far.
    """

    optax_fields = ("scale", "best_value", "plateau_count", "cooldown_count", "count", "avg_value")

    scale: Shared[Float[Array, ""]] = shared(None, starts=1.0, metric=True, factor=True)
    best_value: Shared[Float[Array, ""]] = shared(None, starts=lambda _: largest_float())
    plateau_count: Shared[Count] = shared(None, starts=0)
    cooldown_count: Shared[Count] = shared(None, starts=0)
    # The count starts again after every mean, so that no schedule can follow it.
    count: Shared[Count] = counter(steps=False)
    avg_value: Shared[Float[Array, ""]] = shared(None, starts=0.0)


class ReduceOnPlateau(AbstractLeafwise[ReduceLROnPlateauState]):
    r"""Reduces the learning rate on plateau: scales the updates down when a value stops improving.

        Chain(AdamW(1e-3), ReduceOnPlateau(factor=0.5, patience=5, accumulation_size=100))

    `update` needs the value as the extra argument `value`: the loss of the batch, or a validation loss. The mean $v$ of
    every `accumulation_size` values is compared with the best one so far. It is an improvement if

    $$
    v < v_\text{best} - \text{rtol}\, |v_\text{best}| - \text{atol}
    $$

    After `patience` means in a row without improvement, the scale is multiplied by `factor`. During the next `cooldown`
    means it stays the same. An infinite or NaN mean isn't an improvement.

    This transform doesn't count steps, so it can't evaluate schedules: to schedule one of its hyperparameters, wrap it
    in `Scheduled(...)`.

    Args:
        factor: factor by which the scale is reduced.
        patience: number of means in a row without improvement after which the scale is reduced.
        rtol: smallest improvement, relative to the best mean.
        atol: smallest improvement, absolute.
        cooldown: number of means after a reduction during which the scale stays the same.
        accumulation_size: number of values in a mean; 1 for values that are measured on all data.
        min_scale: smallest scale.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)

    factor: Number = number(0.1, needs=PROPER_FRACTION)
    patience: Number = number(10, needs=WHOLE)
    rtol: Number = number(1e-4, needs=FRACTION)
    atol: Number = number(0.0, needs=NEVER_NEGATIVE)
    cooldown: Number = number(0, needs=WHOLE_OR_ZERO)
    accumulation_size: Number = number(1, needs=WHOLE)
    min_scale: Number = number(0.0, needs=NON_NEGATIVE)

    def _effect(self, tree):
        return Effect([self] * len(jtu.tree_leaves(tree)))

    def init_leaf(self, p):
        del p
        return ReduceLROnPlateauState()

    def survey(self, count, state, updates, params, *, value, **extra):
        del count, updates, params, extra
        n = safe_increment(state.count)
        avg = state.avg_value + (loss_of(value) - state.avg_value) / n.astype(default_float())
        is_whole = n.astype(default_float()) >= self.accumulation_size
        best = jnp.minimum(state.best_value, largest_float())  # a state from optax starts at infinity
        # A mean of minus infinity would stay the best one forever.
        improves = jnp.isfinite(avg) & (avg < best - self.rtol * jnp.abs(best) - self.atol)
        is_resting = state.cooldown_count > 0
        bad = jnp.where(improves | is_resting, 0, safe_increment(state.plateau_count))
        reduces = bad.astype(default_float()) >= self.patience
        rest = jnp.where(reduces, self.cooldown, 0).astype(jnp.int32)
        compared = ReduceLROnPlateauState(
            scale=jnp.maximum(self.min_scale, jnp.where(reduces, self.factor * state.scale, state.scale)),
            best_value=jnp.where(improves, avg, best),
            plateau_count=jnp.where(reduces, 0, bad),
            cooldown_count=jnp.where(is_resting, state.cooldown_count - 1, rest),
            count=jnp.zeros_like(n),
            avg_value=jnp.zeros_like(avg),
        )
        gathered = dataclasses.replace(state, count=n, avg_value=avg)
        return jtu.tree_map(lambda new, old: jnp.where(is_whole, new, old), compared, gathered)

    def update_leaf(self, now, g, s, p):
        del p
        return now.scale * g, s
