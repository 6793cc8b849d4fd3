"""Functions on pytrees of arrays: arithmetic, norms, moments, search by name, and dotted paths of leaves."""

from ._arithmetic import (
    add as add,
    add_scale as add_scale,
    clip as clip,
    conj as conj,
    div as div,
    mul as mul,
    real as real,
    scale as scale,
    sub as sub,
    where as where,
)
from ._like import (
    batch_shape as batch_shape,
    cast as cast,
    cast_like as cast_like,
    dtype as dtype,
    full_like as full_like,
    ones_like as ones_like,
    random_like as random_like,
    split_key_like as split_key_like,
    unwrap_random_key_data as unwrap_random_key_data,
    zeros_like as zeros_like,
)
from ._math import allclose as allclose, max as max, min as min, norm as norm, size as size, sum as sum, vdot as vdot
from ._moments import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from ._paths import leaf_paths as leaf_paths
from ._quantized import dequantize as dequantize
from ._search import filter as filter, get as get, get_all_with_path as get_all_with_path, set as set
from ._stacks import unstack as unstack
from ._state import map_params as map_params
