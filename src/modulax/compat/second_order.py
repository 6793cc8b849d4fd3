"""`optax.second_order`."""

from ._own import names_of

__getattr__, __dir__ = names_of("second_order")
