"""Leaves by their paths, and names that refer to them."""

from .._support.flax_nodes import check_nnx as check_nnx, is_variable as is_variable, register_class as register_class
from ..tree._align import align as align, paired as paired
from ..tree._leaves import check_shapes as check_shapes, columns as columns
from ..tree._math import (
    in_place_of as in_place_of,
    inner as inner,
    shapes_of as shapes_of,
    shapes_without as shapes_without,
    strong as strong,
    total as total,
    trainable as trainable,
    widened as widened,
)
from ..tree._names import (
    NamingError as NamingError,
    Path as Path,
    ambiguous_name as ambiguous_name,
    as_argument as as_argument,
    joined as joined,
)
from ..tree._paths import (
    JoinedNames as JoinedNames,
    Names as Names,
    dotted as dotted,
    is_joined as is_joined,
    is_plain as is_plain,
    join as join,
    key_names as key_names,
    leaves_by_names as leaves_by_names,
    leaves_with_paths as leaves_with_paths,
    longest_prefix as longest_prefix,
    named_leaves as named_leaves,
    split as split,
)
