"""Schedules: numbers that depend on the step. One may stand in any numeric field of a transform."""

from .._schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
    WrappedSchedule as WrappedSchedule,
    WrappedStatefulSchedule as WrappedStatefulSchedule,
)
from ._curves import (
    Constant as Constant,
    CosineDecay as CosineDecay,
    Join as Join,
    Linear as Linear,
    PiecewiseConstant as PiecewiseConstant,
    WarmupCosineDecay as WarmupCosineDecay,
)
