"""Where the arrays of a state live: beside the parameters that they belong to."""

from typing import Any

import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from ._transform import AbstractTransform
from ._types import Params
from .tree._paths import named_leaves


def owners(state: PyTree, params: Params) -> list[int | None]:
    """For each leaf of a state, in JAX's order, which leaf of the parameters it belongs to.

    It belongs to the parameter of its shape whose path is the end of its own, the longest if there are several.
    """
    found = {names: (i, p.shape) for i, (names, p) in enumerate(named_leaves(params))}

    def owner(names: tuple[str, ...], x: Any) -> int | None:
        for start in range(len(names) + 1):
            i, shape = found.get(names[start:], (None, None))
            if shape == x.shape:
                return i
        return None

    return [owner(names, x) for names, x in named_leaves(state)]


def state_sharding(transform: AbstractTransform, params: Params) -> PyTree:
    """The sharding of every array of the state: that of its parameter, or a copy on each device of the mesh.

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
    found = [everywhere if i is None else shardings[i] for i in owners(state, params)]
    return jtu.tree_unflatten(jtu.tree_structure(state), found)
