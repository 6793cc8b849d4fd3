"""The schedules."""

import jax.numpy as jnp
import optax

from modulax import schedules

from ._instance import Instance, twins
from ._masks import WARMUP, decaying

CYCLES = ({**WARMUP, "decay_steps": 10}, {**WARMUP, "end_value": 0.01, "exponent": 2.0, "decay_steps": 20})
SCHEDULES = (
    twins("Constant", schedules.Constant, optax.constant_schedule, 0.3),
    twins("Linear", schedules.Linear, optax.linear_schedule, 1.0, 0.1, 20, transition_begin=5),
    twins("CosineDecay", schedules.CosineDecay, optax.cosine_decay_schedule, 0.5, 30, 0.1, 1.5),
    twins(
        "WarmupCosineDecay",
        schedules.WarmupCosineDecay,
        optax.warmup_cosine_decay_schedule,
        **WARMUP,
        end_value=0.01,
        exponent=2.0,
    ),
    twins("PiecewiseConstant", schedules.PiecewiseConstant, optax.piecewise_constant_schedule, 1.0, {10: 0.5, 20: 0.1}),
    Instance(
        "Join",
        lambda: schedules.Join([schedules.Linear(0.0, 1.0, 10), 0.5, decaying], [10, 20]),
        lambda: optax.join_schedules(
            [optax.linear_schedule(0.0, 1.0, 10), optax.constant_schedule(0.5), decaying], [10, 20]
        ),
    ),
    twins("Polynomial", schedules.Polynomial, optax.polynomial_schedule, 1.0, 0.1, 2.5, 20, 5),
    twins("ExponentialDecay", schedules.ExponentialDecay, optax.exponential_decay, 1.0, 10, 0.3, 5, end_value=0.05),
    Instance("REX", lambda: schedules.REX(1.0, 25, 0.1)),
    twins(
        "PiecewiseInterpolate",
        schedules.PiecewiseInterpolate,
        optax.piecewise_interpolate_schedule,
        "cosine",
        1.0,
        {10: 0.5, 15: 4.0, 30: 0.1},
    ),
    twins("CosineOneCycle", schedules.CosineOneCycle, optax.cosine_onecycle_schedule, 30, 2.0, 0.3, 20.0, 100.0),
    twins("LinearOneCycle", schedules.LinearOneCycle, optax.linear_onecycle_schedule, 20, 2.0, 0.3, 0.85, 20.0, 100.0),
    twins("SGDR", schedules.SGDR, optax.sgdr_schedule, CYCLES),
    twins("WarmupConstant", schedules.WarmupConstant, optax.warmup_constant_schedule, 0.1, 1.0, 10),
    twins(
        "WarmupExponentialDecay",
        schedules.WarmupExponentialDecay,
        optax.warmup_exponential_decay_schedule,
        0.1,
        1.0,
        5,
        10,
        0.3,
        3,
        True,
        0.05,
    ),
    Instance("WarmupStableDecay", lambda: schedules.WarmupStableDecay(0.1, 1.0, 5, 10, 15, 0.01, "exponential")),
    Instance("EMAWarmup", lambda: schedules.EMAWarmup(0.9, 12)),
    Instance("InverseSqrt", lambda: schedules.InverseSqrt(1.0, 10, 0.1)),
    Instance("Power", lambda: schedules.Power(64.0, 4e6, 5, 20, 10, 1e-4, 0.015)),
    Instance(
        "Stretched",
        lambda: schedules.CosineDecay(0.5, 0.8, 0.1, 1.5).over(30),
        lambda: optax.cosine_decay_schedule(0.5, 24, 0.1, 1.5),
    ),
    Instance(
        "Expression",
        lambda: -(0.5 * schedules.Linear(1.0, 0.1, 20) - 2.0) / (1.0 + schedules.CosineDecay(0.5, 30)),
        lambda: (
            lambda t: (
                (2.0 - 0.5 * optax.linear_schedule(1.0, 0.1, 20)(t)) / (1.0 + optax.cosine_decay_schedule(0.5, 30)(t))
            )
        ),
    ),
    Instance(
        "Clipped",
        lambda: schedules.CosineDecay(0.5, 30).clip(0.1, schedules.Linear(0.3, 0.4, 10)),
        lambda: (
            lambda t: jnp.clip(optax.cosine_decay_schedule(0.5, 30)(t), 0.1, optax.linear_schedule(0.3, 0.4, 10)(t))
        ),
    ),
    Instance("WrappedSchedule", lambda: schedules.WrappedSchedule(decaying), lambda: decaying),
)


STATEFUL = (
    Instance(
        "WrappedStatefulSchedule", lambda: schedules.WrappedStatefulSchedule(optax.schedules.WrappedSchedule(decaying))
    ),
)
