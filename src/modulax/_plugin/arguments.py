"""Checks and conversions of arguments, with errors that quote the call."""

from .._support.arguments import (
    Axes as Axes,
    axes_of as axes_of,
    broadcast as broadcast,
    broadcast_shape as broadcast_shape,
    check_matrix as check_matrix,
    check_one_shape as check_one_shape,
    floating as floating,
    inexact as inexact,
    integral as integral,
    known as known,
    promoted as promoted,
    real_arrays as real_arrays,
    traced_check as traced_check,
)
from .._support.checks import (
    AT_LEAST_ONE as AT_LEAST_ONE,
    DECAY as DECAY,
    FRACTION as FRACTION,
    NEVER_NEGATIVE as NEVER_NEGATIVE,
    NON_NEGATIVE as NON_NEGATIVE,
    POSITIVE as POSITIVE,
    PROPER_FRACTION as PROPER_FRACTION,
    WHOLE_OR_ZERO as WHOLE_OR_ZERO,
    Requirement as Requirement,
    any_range as any_range,
    check_integer as check_integer,
    check_option as check_option,
    require as require,
)
