"""`optax.experimental`."""

from . import aggregating as aggregating
from .aggregating import __getattr__ as __getattr__
