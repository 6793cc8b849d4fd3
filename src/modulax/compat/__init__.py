"""optax's vocabulary: `from modulax import compat as optax` lets a program that was written for optax run.

The layout is that of optax 0.2.8, with its names, arguments and defaults. What comes back are transforms of modulax:
`optax.adam(1e-3)` is `modulax.Adam(1e-3)`, which can be replaced, swept and differentiated. Classes that compute
something else than optax by default are constructed with `follow="optax"`.
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
from ._own import names_of

__getattr__, __dir__ = names_of("")
