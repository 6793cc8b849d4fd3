"""Where the arrays of a state live: beside the parameters that they belong to."""

import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.transform import AbstractTransform
from .._support.types import Params
from ..tree._state import owners


def state_sharding(transform: AbstractTransform, params: Params) -> PyTree:
    """The sharding of every array of the state: that of its parameter, or a copy on each device of the mesh.

    What belongs to which parameter is known from the fields of the state; an array of another shape than its parameter
    is copied.

    The compiled `init` does not know where its zeros will be needed, and puts them on one device. Told so, it makes
    them in place, and no device ever holds a whole copy:

        shardings = state_sharding(optimizer, params)
        state = jax.jit(optimizer.init, out_shardings=shardings)(params)

    Args:
        transform: a transform or an optimizer.
        params: the parameters, or arrays of `jax.ShapeDtypeStruct` with a `sharding`.

    Returns:
        a tree of the state's structure with a `jax.sharding.Sharding` at every leaf.
    """
    state = jax.eval_shape(transform.init, params)
    leaves = jtu.tree_leaves(params)
    shardings = [getattr(p, "sharding", None) for p in leaves]
    if any(s is None for s in shardings):
        raise ValueError(
            "`state_sharding` reads the shardings of the parameters, and some have none. Give arrays, or "
            "`jax.ShapeDtypeStruct(shape, dtype, sharding=...)`."
        )
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    if meshes:  # what nobody placed goes where the rest is
        everywhere = jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec())
        shardings = [everywhere if isinstance(s, jax.sharding.SingleDeviceSharding) else s for s in shardings]
    else:
        everywhere = shardings[0] if shardings else None
    found = [everywhere if i is None else shardings[i] for i in owners(state, params, of_same_shape=True)]
    return jtu.tree_unflatten(jtu.tree_structure(state), found)
