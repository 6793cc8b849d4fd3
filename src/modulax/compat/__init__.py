"""optax's vocabulary: `from modulax import compat as optax` lets a program that was written for optax run.

The layout is that of optax 0.2.8, with its names, arguments and defaults. Transformations are pairs of functions, and
states are NamedTuples in optax's nesting. `optax.adam(1e-3).transform` is the transform that computes,
`modulax.Adam(1e-3)`, which can be replaced, swept and differentiated. Classes that compute something else than optax by
default are constructed with `follow="optax"`. `install()` puts this module in the place of optax for a whole process.
"""

from . import (
    assignment as assignment,
    contrib as contrib,
    experimental as experimental,
    losses as losses,
    microbatching as microbatching,
    perturbations as perturbations,
    projections as projections,
    schedules as schedules,
    second_order as second_order,
    transforms as transforms,
    tree as tree,
    tree_utils as tree_utils,
)
from ._install import install as install
from ._names import NAMES as _NAMES
from ._own import VERSION as _VERSION, names_of
from ._paths import optax_paths as optax_paths, to_optax as to_optax
from ._private import PRIVATE as _PRIVATE, register as _register

__getattr__, __dir__ = names_of("")

__version__ = _VERSION
_src = _PRIVATE["_src"]
_register()
_SUBMODULES = {name.partition(".")[0] for name in _NAMES if name}
# Deprecated names too, which warn, as in optax.
__all__ = sorted({*_NAMES[""], *_SUBMODULES, "__version__", "install", "optax_paths", "to_optax"})  # pyright: ignore
