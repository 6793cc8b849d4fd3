"""Checkpoints by name, which can be restored after the program has changed, with a report of what was not restored.

They are ordinary orbax trees. `save` and `restore` need orbax (`pip install modulax[orbax]`); the rest does not.
"""

from ._carry import Carried as Carried, carry as carry
from ._convert import load_state_dict as load_state_dict, state_dict as state_dict
from ._names import Report as Report
from ._optax import state_from_optax as state_from_optax, state_to_optax as state_to_optax
from ._store import restore as restore, save as save
from ._torch import state_from_torch as state_from_torch
