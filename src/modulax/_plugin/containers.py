"""Chains, injected hyperparameters, and what the states of some containers and rules hold."""

from .._containers.chain import is_chain as is_chain, is_chain_state as is_chain_state
from .._containers.injected import (
    hyperparameters_in as hyperparameters_in,
    injected_paths as injected_paths,
    with_hyperparams as with_hyperparams,
)
from .._containers.lookahead import is_pair as is_pair
from .._containers.optax_adapters import named_in as named_in, settings_of_optax as settings_of_optax
from .._containers.order import (
    LastOne as LastOne,
    decays_in as decays_in,
    in_any as in_any,
    is_last as is_last,
    last_one_in as last_one_in,
)
from .._containers.reshaping import is_complex_pair as is_complex_pair
from .._rules.lbfgs import two_loops as two_loops
from .._transforms import zoom as zoom
from .._transforms.matrices import Matrix as Matrix, matrices_as as matrices_as, matrices_of as matrices_of
