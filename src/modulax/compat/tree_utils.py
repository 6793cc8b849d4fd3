"""`optax.tree_utils`."""

from ._own import names_of

__getattr__, __dir__ = names_of("tree_utils")
