"""Schedules: values that depend on the step, for learning rates and any other numeric field of a transform."""

import importlib as _importlib
import typing as _typing

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

if not _typing.TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        explain = _importlib.import_module("modulax._catalog.optax_names").no_such_name
        raise AttributeError(explain(name, "schedules"), name=None, obj=None)  # Python adds no second suggestion
