"""Where the state of an optimizer would lie in optax: `optax_paths`."""

import jax
import jax.tree_util as jtu

from .._protocol.transform import AbstractTransform
from .._support.types import Params
from ..tree._math import trainable
from ..tree._paths import key_names, leaf_paths
from ._layouts import Form, to_optax


def optax_paths(optimizer: AbstractTransform, params: Params) -> dict[str, str]:
    """Return the path of each array in optax's form of a state, and its path in ours.

        optax_paths(mx.AdamW(1e-3), params)  # {"0/mu/dense/kernel": "inner.parts.scale_by_adam.mu.dense.kernel", ...}

    For partition rules, loggers and renamers whose regular expressions were written for optax: `opt_state/0/mu/.*`.
    Nothing is computed. Arrays that only one of the two has, such as the step count of an optimizer whose learning rate
    is a number, are left out; a count that optax keeps twice is in two places.

    Args:
        optimizer: the optimizer.
        params: the parameters, or their shapes and dtypes.
    """
    params = trainable(params)
    state = jax.eval_shape(optimizer.init, params)
    program, theirs = jax.make_jaxpr(lambda s: to_optax(optimizer, s, Form(params)), return_shape=True)(state)
    names = dict(zip(map(id, program.jaxpr.invars), leaf_paths(state), strict=True))
    places = ["/".join(key_names(path)) for path, _ in jtu.tree_leaves_with_path(theirs)]
    found = zip(places, program.jaxpr.outvars, strict=True)
    return {place: names[id(x)] for place, x in found if id(x) in names}
