"""Dtypes, keys, placement and tracing of arrays."""

from .._support.arithmetic import (
    common_dtype as common_dtype,
    default_float as default_float,
    dtype_in_program as dtype_in_program,
    enable_x64 as enable_x64,
    is_inexact_array as is_inexact_array,
    is_narrower as is_narrower,
    is_numeric_array as is_numeric_array,
    moment as moment,
    no_steps as no_steps,
    rank_of as rank_of,
    ratio as ratio,
    real_dtype as real_dtype,
)
from .._support.dependence import sources_of as sources_of
from .._support.keys import is_key_data as is_key_data, is_typed_key as is_typed_key
from .._support.placement import cuts_tiles as cuts_tiles, sharding_along as sharding_along
from .._support.tracing import call_user as call_user, runs_as_python as runs_as_python, tracing as tracing
from .._support.types import ARRAY_TYPES as ARRAY_TYPES, Params as Params, State as State
from ..numerics._quantized import form_of as form_of, quantized as quantized
