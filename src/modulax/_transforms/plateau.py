"""A learning rate that is reduced when a value no longer improves."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import default_float, safe_increment
from .._support.checks import AT_LEAST_ONE, FRACTION, NON_NEGATIVE, PROPER_FRACTION
from .._support.module import AbstractState, counter, shared
from .._support.types import Count
from .polyak import loss_of


class ReduceLROnPlateauState(AbstractState):
    """The state of `ReduceOnPlateau`.

    `scale` is the factor now, `best_value` the smallest value so far, `plateau_count` how many did not improve on it,
    `cooldown_count` how many more are only watched, and `count` and `avg_value` are those of the values that are being
    averaged.
    """

    scale: Float[Array, ""] | None = shared(None)
    best_value: Float[Array, ""] | None = shared(None)
    plateau_count: Count | None = shared(None)
    cooldown_count: Count | None = shared(None)
    count: Count | None = counter(steps=False)
    avg_value: Float[Array, ""] | None = shared(None)


class ReduceOnPlateau(AbstractLeafwise):
    r"""Multiplies the updates by a number that becomes smaller whenever a value has not improved for some time.

        Chain(AdamW(1e-3), ReduceOnPlateau(factor=0.5, patience=5, accumulation_size=100))

    `update` needs the value as the extra argument `value`: the loss of the batch, or one that is measured now and then.
    The mean $v$ of every `accumulation_size` values is compared to the best so far,

    $$
    v < v_\text{best} - \text{rtol}\, |v_\text{best}| - \text{atol}
    $$

    and where that does not hold `patience` times in a row, the scale is multiplied by `factor`. For the next `cooldown`
    means it is then left alone. A mean that is infinite or NaN is no improvement.

    The numbers are hyperparameters like others, which may be changed during the run; a schedule in one of them needs
    `Scheduled(...)` around this, since it does not count the steps.

    Args:
        factor: what the scale is multiplied by.
        patience: after how many means without improvement.
        rtol: the improvement that counts, relative to the best value.
        atol: the improvement that counts, absolute.
        cooldown: for how many means the scale is left alone after it was reduced.
        accumulation_size: how many values are averaged; one if they are measured on all data.
        min_scale: the smallest scale.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)

    factor: Number = number(0.1, needs=PROPER_FRACTION)
    patience: Number = number(10, needs=AT_LEAST_ONE)
    rtol: Number = number(1e-4, needs=FRACTION)
    atol: Number = number(0.0, needs=NON_NEGATIVE)
    cooldown: Number = number(0, needs=NON_NEGATIVE)
    accumulation_size: Number = number(1, needs=AT_LEAST_ONE)
    min_scale: Number = number(0.0, needs=NON_NEGATIVE)

    def init_leaf(self, p):
        del p
        return ReduceLROnPlateauState()

    def init_shared(self, params):
        del params
        return {
            "scale": jnp.ones((), default_float()),
            "best_value": _nothing_yet(),
            "plateau_count": jnp.zeros((), jnp.int32),
            "cooldown_count": jnp.zeros((), jnp.int32),
            "avg_value": jnp.zeros((), default_float()),
        }

    def survey(self, count, state, updates, params, *, value, **extra):
        del count, updates, params, extra
        n = safe_increment(state.count)
        avg = state.avg_value + (loss_of(value) - state.avg_value) / n.astype(default_float())
        is_whole = n.astype(default_float()) >= self.accumulation_size
        best = jnp.minimum(state.best_value, _nothing_yet())  # optax begins with infinity
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

    def share(self, now):
        return vars(now)

    def update_leaf(self, now, g, s, p):
        del p
        return now.scale * g, s


def _nothing_yet() -> Float[Array, ""]:
    """The best value before there was one: the largest number, which is finite, so that it has a neighbourhood."""
    return jnp.array(jnp.finfo(default_float()).max, default_float())
