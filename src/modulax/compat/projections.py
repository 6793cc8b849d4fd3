"""`optax.projections`."""

from ._own import names_of

__getattr__, __dir__ = names_of("projections")
