"""Schedules: values that depend on the step, for learning rates and any other numeric field of a transform."""

from .._protocol.schedule import (
    AbstractSchedule as AbstractSchedule,
    AbstractStatefulSchedule as AbstractStatefulSchedule,
    Clipped as Clipped,
    Expression as Expression,
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
from ._pieces import Join as Join, PiecewiseConstant as PiecewiseConstant, PiecewiseInterpolate as PiecewiseInterpolate
from ._warmups import (
    EMAWarmup as EMAWarmup,
    WarmupConstant as WarmupConstant,
    WarmupCosineDecay as WarmupCosineDecay,
    WarmupExponentialDecay as WarmupExponentialDecay,
)
