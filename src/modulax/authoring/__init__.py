"""What a rule is made of: base classes, declarations of fields, and the arithmetic that rules share.

    import modulax.authoring as ma

    class SoftSign(ma.AbstractLeafwise):
        sharpness: ma.Number = ma.number(10.0)

        def update_leaf(self, now, g, s, p):
            return jnp.tanh(self.sharpness * g), s

The rules of this library are written with these names too. They change as the rest of the public interface does.
"""

import importlib as _importlib
from dataclasses import KW_ONLY as KW_ONLY
from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtyping import Array as Array, DTypeLike as DTypeLike, PyTree as PyTree

from .._containers.chain import Chain as Chain
from .._protocol.container import (
    AbstractContainer as AbstractContainer,
    AbstractOptimizer as AbstractOptimizer,
    part as part,
    required_part as required_part,
)
from .._protocol.fields import (
    Number as Number,
    Numbers as Numbers,
    OptionalNumber as OptionalNumber,
    choice as choice,
    followed as followed,
    number as number,
    numbers as numbers,
    required_number as required_number,
    static as static,
)
from .._protocol.leafwise import AbstractLeafwise as AbstractLeafwise
from .._protocol.masks import Mask as Mask, mask as mask
from .._protocol.schedule_values import at_start as at_start
from .._protocol.transform import AbstractTransform as AbstractTransform, EmptyState as EmptyState
from .._support.arithmetic import (
    abs_sq as abs_sq,
    at_least_float32 as at_least_float32,
    bias as bias,
    default_float as default_float,
    moment as moment,
    ratio as ratio,
    safe_sqrt as safe_sqrt,
    second_moment_like as second_moment_like,
    zeros_in as zeros_in,
)
from .._support.checks import (
    DECAY as DECAY,
    FRACTION as FRACTION,
    NON_NEGATIVE as NON_NEGATIVE,
    POSITIVE as POSITIVE,
    WHOLE as WHOLE,
)
from .._support.module import (
    AbstractState as AbstractState,
    counter as counter,
    like_params as like_params,
    nested as nested,
    shared as shared,
)
from .._support.slots import library as _library
from .._support.types import (
    Count as Count,
    Follow as Follow,
    Params as Params,
    Scalar as Scalar,
    Shared as Shared,
    Updates as Updates,
)
from .._transforms.regularization import AddDecayedWeights as AddDecayedWeights
from .._transforms.scaling import Scale as Scale, ScaleByLearningRate as ScaleByLearningRate
from ..tree._math import norm as norm
from ._optimizers import (
    AbstractDecayed as AbstractDecayed,
    AbstractDecayedByName as AbstractDecayedByName,
    AbstractFields as AbstractFields,
    AbstractMoments as AbstractMoments,
    AbstractNesterov as AbstractNesterov,
    AbstractRated as AbstractRated,
)

if _TYPE_CHECKING:
    from .._transforms.matrixwise import AbstractMatrixwise as AbstractMatrixwise

# Imported when first used: a rule on arrays needs no linear algebra.
_LATE = {"AbstractMatrixwise": ".._transforms.matrixwise"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        return _library.module._refuse("authoring", name)
    globals()[name] = value = getattr(_importlib.import_module(_LATE[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
