"""Containers with a second set of parameters: averages, look-ahead, adversaries, and a scale that is found."""

from typing import Any

import jax
import optax

import modulax as mx
from modulax import schedules

from ._instance import Instance, twins


class PlainLookahead:
    """Optax's lookahead for plain parameters: the slow ones are kept in the state."""

    def __init__(self, *args: Any) -> None:
        self.inner = optax.lookahead(*args)

    def init(self, params: Any) -> Any:
        return params, self.inner.init(optax.LookaheadParams.init_synced(params))

    def update(self, updates: Any, state: Any, params: Any) -> Any:
        slow, state = state
        pair: Any
        pair, state = self.inner.update(updates, state, optax.LookaheadParams(params, slow))
        return pair.fast, (jax.tree.map(lambda s, u: s + u, slow, pair.slow), state)


def adversary() -> mx.Chain:
    return mx.Chain(mx.Normalize(), mx.SGD(0.1, 0.5))


def optax_adversary() -> Any:
    return optax.chain(optax.contrib.normalize(), optax.sgd(0.1, 0.5))


TRANSFORMS = (
    Instance("ParamEMA", lambda: mx.ParamEMA(mx.SGD(0.05, 0.9), schedules.EMAWarmup(0.9), start=1, every=2)),
    Instance("ParamEMA(debias=False)", lambda: mx.ParamEMA(mx.SGD(0.05, 0.9), 0.9, debias=False)),
    Instance("ParamAverage", lambda: mx.ParamAverage(mx.SGD(0.05, 0.9), 1, 2)),
    Instance("ParamAverage(window=2)", lambda: mx.ParamAverage(mx.SGD(0.05, 0.9), window=2)),
    Instance(
        "ScheduleFree",
        lambda: mx.ScheduleFree(mx.Chain(mx.AddDecayedWeights(0.1), mx.SGD(0.05)), 0.05, 0.8),
        lambda: optax.contrib.schedule_free(optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05)), 0.05, 0.8),
    ),
    twins("ScheduleFreeSGD", mx.ScheduleFreeSGD, optax.contrib.schedule_free_sgd, 0.1),
    Instance("ScheduleFreeAdamW", lambda: mx.ScheduleFreeAdamW(0.05, 10, weight_decay=0.1)),
    twins(
        "ScheduleFreeAdamW-optax",
        mx.ScheduleFreeAdamW,
        optax.contrib.schedule_free_adamw,
        0.05,
        10,
        weight_decay=0.1,
        follow="optax",
    ),
    Instance(
        "Lookahead",
        lambda: mx.Lookahead(mx.SGD(0.05, 0.9), 3, 0.4, reset_state=True),
        lambda: PlainLookahead(optax.sgd(0.05, 0.9), 3, 0.4, True),
    ),
    Instance(
        "SAM",
        lambda: mx.SAM(mx.SGD(0.05, 0.9), adversary(), sync_period=3),
        lambda: optax.contrib.sam(optax.sgd(0.05, 0.9), optax_adversary(), sync_period=3),
    ),
    Instance("Mechanize", lambda: mx.Mechanize(mx.SGD(1.0))),
    Instance("Mechanize-recomputed", lambda: mx.Mechanize(mx.SGD(1.0), s_init=1e-3, store_delta=False)),
    Instance(
        "Mechanize-optax",
        lambda: mx.Mechanize(mx.SGD(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3, follow="optax"),
        lambda: optax.contrib.mechanize(optax.sgd(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3),
    ),
)
