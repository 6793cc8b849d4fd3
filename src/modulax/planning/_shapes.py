"""Parameters, state and batch as shapes with shardings: what a program is compiled for, without any array."""

import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from .. import state_sharding
from .._catalog._plugin import divided
from .._plugin.arrays import dtype_in_program
from .._plugin.messages import listing
from .._plugin.states import sections
from .._plugin.trees import longest_prefix, named_leaves
from ..authoring import AbstractTransform, Params
from ._report import StateField
from ._topology import SLICE

HOST = "pinned_host"  # the memory in which `Offload` keeps a state


def is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def shape_of(x: Any) -> Any:
    """The shape of an array or a number, with the dtype in a compiled program; anything else as it is."""
    if is_shape(x):
        return x.update(dtype=dtype_in_program(x.dtype))
    if eqx.is_array_like(x) and not isinstance(x, bool):
        return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
    return x


def placed(params: Params, mesh: Mesh, spec: Any) -> Params:
    """The parameters as shapes with shardings on the mesh."""
    specs: list[Any] = _specs(params, spec) if _is_tree(spec) else []
    leaves = []
    for i, (names, leaf) in enumerate(named_leaves(params)):
        if not (is_shape(leaf) or eqx.is_array(leaf)):
            leaves.append(leaf)
            continue
        path = ".".join(names)
        sharding = _sharding(path, leaf, mesh, specs[i] if specs else spec)
        leaves.append(jax.ShapeDtypeStruct(leaf.shape, dtype_in_program(leaf.dtype), sharding=sharding))
    return jtu.tree_structure(params).unflatten(leaves)


def _is_tree(spec: Any) -> bool:
    return not (spec is None or isinstance(spec, str) or _is_axes(spec) or callable(spec))


def _is_axes(spec: Any) -> bool:
    return type(spec) is tuple and all(isinstance(axis, str) for axis in spec)


def _specs(params: Params, spec: PyTree) -> list[PartitionSpec]:
    """A spec for each leaf, from a tree of specs that may end above the leaves."""

    def is_spec(x: Any) -> bool:
        return x is None or isinstance(x, PartitionSpec)

    try:
        whole = jtu.tree_map(lambda s, below: jtu.tree_map(lambda _: [s], below), spec, params, is_leaf=is_spec)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"`plan(spec=...)` must be a tree of `PartitionSpec`s like `params`: {reason}") from None
    return jtu.tree_leaves(whole, is_leaf=is_spec)


def _sharding(path: str, leaf: Any, mesh: Mesh, spec: Any) -> Sharding:
    """The sharding of a parameter."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    if isinstance(spec, str) or _is_axes(spec):
        axes = (spec,) if isinstance(spec, str) else spec
        if unknown := [axis for axis in axes if axis not in mesh.axis_names]:
            raise ValueError(
                f"`plan(spec={spec!r})`: the mesh has no axis {unknown[0]!r}, but {listing(mesh.axis_names)}."
            )
        return divided(everywhere, leaf.shape, axes, True)
    given = getattr(leaf, "sharding", None)
    if spec is None and isinstance(given, NamedSharding):
        spec = given.spec
    elif callable(spec):
        spec = spec(path, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return _checked(f"spec for `{path}`", leaf, mesh, spec)


def _checked(what: str, leaf: Any, mesh: Mesh, spec: Any) -> NamedSharding:
    """The sharding for a spec, if the mesh has its axes, and each divides its dimension."""
    try:
        sharding = NamedSharding(mesh, PartitionSpec() if spec is None else spec)
        sharding.shard_shape(leaf.shape)
    except (ValueError, TypeError, AssertionError) as error:
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
        raise ValueError(
            f"`plan`: the {what}, {spec}, does not fit the shape {leaf.shape} and the mesh {axes}. {error}"
        ) from None
    return sharding


def batch_shape(x: Any, mesh: Mesh) -> Any:
    """A part of the batch, divided along its first dimension unless it has a sharding."""
    x = shape_of(x)
    if not is_shape(x):
        return x
    given = getattr(x, "sharding", None)
    first = mesh.axis_names[:2] if mesh.axis_names[0] == SLICE else mesh.axis_names[:1]
    spec = given.spec if isinstance(given, NamedSharding) else PartitionSpec(first) if x.shape else PartitionSpec()
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_checked("sharding of `batch`", x, mesh, spec))


def state_shapes(optimizer: AbstractTransform, arrays: Params, zero: Any) -> PyTree:
    """The state as shapes with shardings."""
    shapes = jax.eval_shape(optimizer.init, arrays)
    shardings = state_sharding(optimizer, arrays, zero=zero)
    return jtu.tree_map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def trained(arrays: Params) -> Params:
    """The shapes of what is trained: floating-point and complex arrays; None for others."""
    return jtu.tree_map(lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None, arrays)


def local_size(x: Any) -> int:
    """The number of entries that one device has."""
    return math.prod(x.sharding.shard_shape(x.shape))


def local_bytes(leaves: Iterable[Any]) -> int:
    """The bytes that one device has."""
    return sum(local_size(x) * x.dtype.itemsize for x in leaves)


def state_fields(state: PyTree, mesh: Mesh) -> tuple[StateField, ...]:
    """The fields of the state, the largest first."""
    known = {section.names for section in sections(state)}
    groups: dict[str, list[Any]] = {}
    for names, leaf in named_leaves(state):
        field = longest_prefix(names, known) or names
        groups.setdefault(".".join(field[-2:]), []).append(leaf)
    found = [_field(name, leaves, mesh) for name, leaves in groups.items()]
    return tuple(sorted(found, key=lambda field: -field.bytes))


def _field(name: str, leaves: list[Any], mesh: Mesh) -> StateField:
    largest = max(leaves, key=lambda x: x.size * x.dtype.itemsize)
    used = {axis for part in largest.sharding.spec for axis in (part if isinstance(part, tuple) else (part,))}
    over = tuple(axis for axis, size in mesh.shape.items() if axis not in used and size > 1)
    return StateField(
        name,
        local_bytes(leaves),
        sum(x.size * x.dtype.itemsize for x in leaves),
        math.prod(mesh.shape[axis] for axis in over),
        over,
        HOST if largest.sharding.memory_kind == HOST else "device",
    )
