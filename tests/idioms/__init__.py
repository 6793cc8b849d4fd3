"""Idioms of programs that were written for optax: small functions of the module, which return what they see."""

from . import libraries, programs, states, transformations
from ._table import IDIOMS as IDIOMS

_DEFINED = (libraries, programs, states, transformations)  # which fill the table
