"""Sharding of the optimizer state: each array is sharded like its parameter."""

import functools

import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.transform import AbstractTransform
from .._support.types import Params
from ..tree._state import init_even_if_empty, owners


def state_sharding(transform: AbstractTransform, params: Params) -> PyTree:
    """Return a sharding for every array of the optimizer state: that of its parameter, or replicated over the mesh.

    The fields of the state determine which array belongs to which parameter. An array of another shape than its
    parameter is replicated.

    Without shardings, the compiled `init` puts its zeros on one device. With them, each device creates its own shards,
    and no device ever holds a whole copy:

        shardings = state_sharding(optimizer, params)
        state = jax.jit(optimizer.init, out_shardings=shardings)(params)

    Args:
        transform: a transform or an optimizer.
        params: the parameters, or a tree of `jax.ShapeDtypeStruct` with shardings.

    Returns:
        a tree with the structure of the state, with a `jax.sharding.Sharding` for each leaf.

    Raises:
        ValueError: if a parameter has no sharding.
    """
    state = jax.eval_shape(functools.partial(init_even_if_empty, transform), params)
    leaves = jtu.tree_leaves(params)
    shardings = [getattr(p, "sharding", None) for p in leaves]
    if any(s is None for s in shardings):
        raise ValueError(
            "`state_sharding` reads the shardings of the parameters, and some have none. Give arrays, or "
            "`jax.ShapeDtypeStruct(shape, dtype, sharding=...)`."
        )
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    if meshes:  # parameters that were not placed explicitly go to the mesh of the others
        everywhere = jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec())
        shardings = [everywhere if isinstance(s, jax.sharding.SingleDeviceSharding) else s for s in shardings]
    else:
        everywhere = shardings[0] if shardings else None
    found = [everywhere if i is None else shardings[i] for i in owners(state, params, of_same_shape=True)]
    return jtu.tree_unflatten(jtu.tree_structure(state), found)
