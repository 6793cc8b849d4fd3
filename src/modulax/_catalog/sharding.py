"""Sharding of the optimizer state: each array is sharded like its parameter, or over more axes of the mesh (ZeRO-1)."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jaxtyping import PyTree

from .._plugin.arrays import cuts_tiles, sharding_along
from .._plugin.messages import explained, listing
from .._plugin.states import declarations, init_even_if_empty, is_per_matrix, owners, stacked_states
from .._plugin.transforms import check_optimizer
from .._plugin.trees import Names, named_leaves
from ..authoring import AbstractTransform, Params


@explained
def state_sharding(
    transform: AbstractTransform, params: Params, *, zero: str | tuple[str, ...] | None = None
) -> PyTree:
    """Return a sharding for every array of the optimizer state: that of its parameter, or replicated over the mesh.

    The fields of the state determine which array belongs to which parameter. An array with a leading axis before the
    shape of its parameter, such as the memory of L-BFGS, is sharded like it along the other axes. So are the codes and
    scales of `LowBit`, of blocks along the last axis. The factors of Adafactor and SM3 are sharded along the axes that
    they keep, unless it is not known which these are: those of a square matrix that is sharded along one side are
    replicated. Matrices of another size, such as the factors of Shampoo and the projectors of GaLore, are sharded by
    rows over all axes over which the parameter is, or by columns. An array of any other shape is replicated.

    An eager `optimizer.init(params)` follows the shardings of the parameters by itself. Inside your own `jax.jit`, XLA
    puts zeros on one device, unless you pass shardings. With them, each device creates its own shards, and no device
    ever holds a whole copy:

        shardings = state_sharding(optimizer, params, zero="data")
        state = jax.jit(optimizer.init, out_shardings=shardings)(params)

    `step`, `update` and `apply_updates` keep parameters and state where they are.

    With `zero`, the state is divided over an axis over which the parameters are replicated, such as the batch axis.
    This is ZeRO-1: each device stores and updates its part of the state, and the new parameters are gathered. In each
    array, including those whose shape differs from their parameter, the longest dimension that the axis divides is
    sharded; the last one only if multiples of 128 entries, the tiles of TPUs, stay multiples, or if no other is
    divided. An array without such a dimension is unchanged, and so is an array that is already sharded over the axis,
    like its parameter in FSDP. On explicit mesh axes, arrays whose shape differs from their parameter are unchanged
    too.

    Args:
        transform: a transform or an optimizer.
        params: the parameters, or a tree of `jax.ShapeDtypeStruct` with shardings.
        zero: axis of the mesh to divide the state over, or several axes.

    Returns:
        a tree with the structure of the state, with a `jax.sharding.Sharding` for each leaf.

    Raises:
        ValueError: if a parameter has no sharding, or if no mesh of the parameters has the axis.

    References:
        Rajbhandari et al., [ZeRO: Memory Optimizations Toward Training Trillion Parameter
        Models](https://arxiv.org/abs/1910.02054), 2019.
    """
    if not callable(getattr(transform, "init", None)):
        check_optimizer("state_sharding(optimizer, params)", transform, params)
    # The types in a jaxpr tell in which memory an array is, which those of `jax.eval_shape` do not.
    jaxpr, state = jax.make_jaxpr(functools.partial(init_even_if_empty, transform), return_shape=True)(params)
    leaves, axes = jtu.tree_leaves(params), _names(zero)
    shardings, everywhere = _shardings(leaves, axes)
    _check_stacks(state, {names: s for (names, _), s in zip(named_leaves(params), shardings, strict=True)})

    def place(owner: int | None, declared: Any, aval: Any) -> Sharding | None:
        sharding = everywhere
        if owner is not None:
            shape = leaves[owner].shape
            sharding = sharding_along(shardings[owner], shape, aval.shape, is_per_matrix(declared)) or everywhere
            if isinstance(sharding, NamedSharding):
                sharding = divided(sharding, aval.shape, axes, shape == aval.shape)
        is_on_host = aval.memory_space == jax.memory.Space.Host  # of `Offload`
        return sharding.with_memory_kind("pinned_host") if sharding is not None and is_on_host else sharding

    return jtu.tree_structure(state).unflatten(map(place, owners(state, params), declarations(state), jaxpr.out_avals))


def _shardings(leaves: Sequence[Any], axes: tuple[str, ...]) -> tuple[list[Any], Sharding | None]:
    """The sharding of every parameter, and that of arrays which are the same on all devices.

    Parameters that were not placed explicitly go to the mesh of the others.
    """
    shardings = [getattr(p, "sharding", None) for p in leaves]
    if None in shardings:
        raise ValueError(
            "`state_sharding` reads the shardings of the parameters, and some have none. Give arrays, or "
            "`jax.ShapeDtypeStruct(shape, dtype, sharding=...)`."
        )
    on_mesh = [s for s in shardings if isinstance(s, NamedSharding)]
    _check_axes(axes, on_mesh)
    if not on_mesh:
        return shardings, next(iter(shardings), None)
    everywhere = NamedSharding(on_mesh[0].mesh, PartitionSpec())
    return [everywhere if isinstance(s, SingleDeviceSharding) else s for s in shardings], everywhere


def _check_stacks(state: PyTree, shardings: Mapping[Names, Any]) -> None:
    """Raise an error if parameters of one stack are sharded in different ways."""
    for stacked in stacked_states(state):
        for group in stacked.together():
            other = next((names for names in group if shardings[names] != shardings[group[0]]), None)
            if other is not None:
                raise ValueError(
                    f"`state_sharding`: `{'.'.join(group[0])}` and `{'.'.join(other)}` are in one stack of `Stacked`, "
                    f"and are sharded differently. Keep them apart: `Partition({{label: Stacked(...), ...}}, labels)` "
                    f"with `labels = jax.tree.map(lambda p: str(p.sharding), params)`."
                )


def _names(axes: Any) -> tuple[str, ...]:
    """The axes of one dimension of a `PartitionSpec`."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def _check_axes(axes: tuple[str, ...], shardings: list[NamedSharding]) -> None:
    if not axes:
        return
    if not shardings:
        raise ValueError(
            f"`state_sharding(zero={axes[0]!r})` divides the state over an axis of the mesh on which the parameters "
            "are, and they are on none. Replicate them over one first: "
            "`jax.device_put(params, NamedSharding(mesh, PartitionSpec()))`."
        )
    names_of_mesh = shardings[0].mesh.axis_names
    if unknown := [name for name in axes if name not in names_of_mesh]:
        raise ValueError(
            f"`state_sharding(zero={unknown[0]!r})`: the mesh of the parameters has no axis {unknown[0]!r}. It has "
            f"{listing(map(str, names_of_mesh))}."
        )


def divided(
    sharding: NamedSharding, shape: tuple[int, ...], axes: tuple[str, ...], is_like_its_parameter: bool
) -> Sharding:
    """Add the axes that the sharding does not use yet to the longest dimension that they divide."""
    mesh, spec = sharding.mesh, [_names(part) for part in sharding.spec]
    spec += [()] * (len(shape) - len(spec))
    new = tuple(name for name in axes if name not in itertools.chain(*spec))
    # On explicit axes, types hold the sharding, and that of factors and gradients would differ.
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    is_fixed = AxisType.Explicit in map(types.get, new) and not is_like_its_parameter
    if not new or is_fixed or (place := _longest(mesh, shape, spec, new)) is None:
        return sharding
    spec[place] += new
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=sharding.memory_kind)


def _longest(mesh: Any, shape: tuple[int, ...], spec: Sequence[tuple[str, ...]], new: tuple[str, ...]) -> int | None:
    """The place of the longest dimension, in a shard, that new axes divide; None if they divide none.

    The last one comes after the others if rows of tiles would be cut.
    """

    def pieces(names: tuple[str, ...]) -> int:
        return math.prod(mesh.shape[name] for name in names)

    lengths = [n // pieces(names) for n, names in zip(shape, spec, strict=True)]
    fits = [i for i, n in enumerate(lengths) if n > 0 and n % pieces(new) == 0]
    last = len(shape) - 1
    is_cut = bool(lengths) and cuts_tiles(lengths[last], pieces(new))
    return max(fits, key=lambda i: (not (is_cut and i == last), lengths[i], not spec[i]), default=None)
