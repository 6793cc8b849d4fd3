"""Functions on pytrees of arrays, and the dotted paths of their leaves."""

from ._math import norm as norm, zeros_like as zeros_like
from ._paths import leaf_paths as leaf_paths
