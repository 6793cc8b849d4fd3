"""What `compat` and `planning` use of optax's names and of the sharding of states."""

from .optax_names import fields_in_optax as fields_in_optax, home as home
from .sharding import divided as divided
