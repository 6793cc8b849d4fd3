"""`optax.schedules`."""

from ._own import names_of

__getattr__, __dir__ = names_of("schedules")
