"""Functions on pytrees of arrays, and the dotted paths of their leaves."""

from ._math import norm as norm, zeros_like as zeros_like
from ._moments import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from ._paths import leaf_paths as leaf_paths
from ._search import (
    filter as filter,
    get as get,
    get_all_with_path as get_all_with_path,
    set as set,
)
from ._state import map_params as map_params
