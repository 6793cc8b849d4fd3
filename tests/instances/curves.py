"""The schedules."""

import optax

from modulax import schedules

from ._instance import Instance
from ._masks import WARMUP, decaying

SCHEDULES = (
    Instance("Constant", lambda: schedules.Constant(0.3), lambda: optax.constant_schedule(0.3)),
    Instance(
        "Linear",
        lambda: schedules.Linear(1.0, 0.1, 20, transition_begin=5),
        lambda: optax.linear_schedule(1.0, 0.1, 20, transition_begin=5),
    ),
    Instance(
        "CosineDecay",
        lambda: schedules.CosineDecay(0.5, 30, 0.1, 1.5),
        lambda: optax.cosine_decay_schedule(0.5, 30, 0.1, 1.5),
    ),
    Instance(
        "WarmupCosineDecay",
        lambda: schedules.WarmupCosineDecay(**WARMUP, end_value=0.01, exponent=2.0),
        lambda: optax.warmup_cosine_decay_schedule(**WARMUP, end_value=0.01, exponent=2.0),
    ),
    Instance(
        "PiecewiseConstant",
        lambda: schedules.PiecewiseConstant(1.0, {10: 0.5, 20: 0.1}),
        lambda: optax.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1}),
    ),
    Instance(
        "Join",
        lambda: schedules.Join([schedules.Linear(0.0, 1.0, 10), 0.5, decaying], [10, 20]),
        lambda: optax.join_schedules(
            [optax.linear_schedule(0.0, 1.0, 10), optax.constant_schedule(0.5), decaying], [10, 20]
        ),
    ),
    Instance("WrappedSchedule", lambda: schedules.WrappedSchedule(decaying), lambda: decaying),
)

STATEFUL = (
    Instance(
        "WrappedStatefulSchedule", lambda: schedules.WrappedStatefulSchedule(optax.schedules.WrappedSchedule(decaying))
    ),
)
