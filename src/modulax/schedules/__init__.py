"""Schedules: numbers that depend on the step. One may stand in any numeric field of a transform."""

from .._schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
    Stretched as Stretched,
    WrappedSchedule as WrappedSchedule,
    WrappedStatefulSchedule as WrappedStatefulSchedule,
)
from ._curves import (
    REX as REX,
    Constant as Constant,
    CosineDecay as CosineDecay,
    ExponentialDecay as ExponentialDecay,
    Linear as Linear,
    Polynomial as Polynomial,
)
from ._cycles import SGDR as SGDR, CosineOneCycle as CosineOneCycle, LinearOneCycle as LinearOneCycle
from ._open_ended import InverseSqrt as InverseSqrt, Power as Power, WarmupStableDecay as WarmupStableDecay
from ._pieces import (
    Join as Join,
    PiecewiseConstant as PiecewiseConstant,
    PiecewiseInterpolate as PiecewiseInterpolate,
)
from ._warmups import (
    WarmupConstant as WarmupConstant,
    WarmupCosineDecay as WarmupCosineDecay,
    WarmupExponentialDecay as WarmupExponentialDecay,
)
