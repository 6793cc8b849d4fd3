"""Results with the sharding of the arrays that they belong to, or that they replace."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree, Shaped

# JAX 0.12 removed `jax.experimental.shard_alike`. In JAX 0.10 it gives all arrays of one shape the same sharding,
# because the lowering is cached, group number included. The lowering of this primitive is not (`cacheable=False`).
_shard_like = Primitive("modulax_shard_like")  # of any number of arrays: an equation for each takes longer to trace
_shard_like.multiple_results = True


_LANES = 128  # the row of a tile of a TPU: https://openxla.org/xla/tiled_layout
_MOST_AXES = 8  # of a parameter whose axes are compared with those of its factors


def shard_like(x: Shaped[Array, "*shape"], like: Shaped[Array, "..."]) -> Shaped[Array, "*shape"]:
    """Return `x`, which a compiled program shards as it does `like`, or only puts on its devices if shapes differ."""
    return _shard_like.bind(x, like)[0]


def cuts_tiles(length: int, parts: int) -> bool:
    """Whether rows of tiles are whole in the last dimension of an array, and cut in a part of it.

    XLA would transpose the array on every TPU: with AdamW and a GPT of 1.3 billion parameters over 256, each would move
    36 GiB for parameters and gradients, not 20.
    """
    return length % _LANES == 0 and length // parts % _LANES != 0


def made_for(params: PyTree, make: Callable[[], PyTree]) -> PyTree:
    """Return what a function makes for parameters, on their devices and on the explicit axes of their mesh."""
    with _mesh_of_types(params):
        return _on_devices_of(make(), params)


def _mesh_of_types(tree: PyTree) -> contextlib.AbstractContextManager[Any]:
    """The context of the mesh whose explicit axes the types of the arrays name, unless there is one already.

    Since JAX 0.11, zeros of the shape of such an array have its type only in the context of its mesh.
    """
    meshes = (jax.typeof(x).sharding.mesh for x in jtu.tree_leaves(tree))
    mesh = next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


def _on_devices_of(tree: PyTree, like: PyTree) -> PyTree:
    """Return the tree, which a compiled program puts on the devices of the arrays in `like` on explicit axes of a mesh.

    A program that is compiled outside `jax.set_mesh` runs on the devices of its arguments, and `jax.jit` drops those
    that nothing is computed from, as for zeros of their shape.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    on_mesh = (x for x in jtu.tree_leaves(like) if AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types)
    kept, place = next(on_mesh, None), next((i for i, x in enumerate(leaves) if isinstance(x, jax.Array)), None)
    if kept is None or place is None:
        return tree
    # In more dimensions, so that the two shapes differ, and the one array says nothing but where the other is.
    longer = jnp.expand_dims(kept, tuple(range(leaves[place].ndim + 1)))
    leaves[place] = shard_like(leaves[place], longer)
    return treedef.unflatten(leaves)


def placed_like(new: PyTree, old: PyTree) -> PyTree:
    """Return `new` with each array where its predecessor in `old` is, also on explicit axes of a mesh.

    XLA may choose any sharding for a result. If the state is sharded over an axis over which the parameters are
    replicated, it would shard the new parameters too.
    """
    leaves, treedef = jtu.tree_flatten(new)
    before, treedef_before = jtu.tree_flatten(old)
    # Without equal structures, it is not known which array replaces which.
    if treedef != treedef_before:
        return new
    places = [i for i, (x, y) in enumerate(zip(leaves, before, strict=True)) if _are_alike(x, y)]
    xs = [typed_like(leaves[i], before[i]) for i in places]
    if places:
        for i, x in zip(places, _shard_like.bind(*xs, *(before[i] for i in places)), strict=True):
            leaves[i] = x
    return treedef.unflatten(leaves)


def sharding_along(sharding: Any, of: tuple[int, ...], shape: tuple[int, ...], per_matrix: bool = False) -> Any:
    """The sharding of a parameter for an array of its shape, with a leading axis, in blocks, or of some of its axes.

    Blocks are along the last axis, as those of `LowBit`. The factors of Adafactor have some of the axes. Square
    matrices, and others that belong to the matrices of the parameter, are divided by rows, or by columns.

    Args:
        sharding: the sharding of the parameter.
        of: the shape of the parameter.
        shape: the shape of the array.
        per_matrix: whether the array belongs to the matrices of the parameter.

    Returns:
        a sharding, or None for an array of any other shape.
    """
    if shape == of:
        return sharding
    if not isinstance(sharding, NamedSharding):
        return None
    if per_matrix:
        return _along_kept_axes(sharding, of, shape) or _of_other_matrices(sharding, shape)
    if shape[1:] == of:
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec), memory_kind=sharding.memory_kind)
    if not _holds_blocks(shape, of):
        return _along_kept_axes(sharding, of, shape)
    try:
        sharding.shard_shape(shape)
    except ValueError:  # a device would have part of a block
        return None
    return sharding


def _along_kept_axes(sharding: NamedSharding, of: tuple[int, ...], shape: tuple[int, ...]) -> NamedSharding | None:
    """The sharding for an array that has some of the axes of a parameter; None if it is not known which."""
    if len(shape) > 1 and shape[-1] == shape[-2] and shape != of[-2:]:
        return _of_other_matrices(sharding, shape)
    if not 0 < len(shape) < len(of) <= _MOST_AXES:
        return None
    spec = (*sharding.spec, *[None] * (len(of) - len(sharding.spec)))
    choices = itertools.combinations(range(len(of)), len(shape))
    found = {tuple(spec[i] for i in axes) for axes in choices if tuple(of[i] for i in axes) == shape}
    if len(found) != 1:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*found.pop()), memory_kind=sharding.memory_kind)


def _of_other_matrices(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding | None:
    """The sharding for matrices of another size than a parameter: all of its devices have some rows, or columns.

    On explicit axes, types hold the sharding, and that of factors and gradients would differ.
    """
    axes = tuple(itertools.chain(*((names,) if isinstance(names, str) else names or () for names in sharding.spec)))
    mesh = sharding.mesh
    place = even_axis(shape, math.prod(mesh.shape[name] for name in axes))
    if not axes or AxisType.Explicit in mesh.axis_types or place is None:
        return None
    spec: list[Any] = [None] * len(shape)
    spec[place] = axes
    return sharding.update(spec=PartitionSpec(*spec))


def even_axis(shape: tuple[int, ...], devices: int) -> int | None:
    """The axis of the rows or columns of matrices that devices divide: rows, if they do; None if they divide neither.

    Matrices of one row or column are means of others.
    """
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return None
    return next((axis for axis in (len(shape) - 2, len(shape) - 1) if shape[axis] % devices == 0), None)


def _holds_blocks(shape: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """Whether an array may hold one value for each block along the last axis of an array of another shape.

    In 4 bits, a byte holds the codes of two rows.
    """
    last = len(of) - 1
    if last < 0 or len(shape) <= last or shape[last] == 0 or of[last] % shape[last]:
        return False
    rows = [of[:last], (*of[: last - 1], of[last - 1] // 2)] if last else [()]
    return shape[:last] in rows


def mesh_sharding(x: Any) -> NamedSharding | None:
    """The sharding of an array over the axes that XLA divides of a mesh of several devices; None for any other value.

    Types say how an array is divided over the explicit axes.
    """
    sharding = x.sharding if isinstance(x, jax.Array) and not isinstance(x, Tracer) else None
    if not isinstance(sharding, NamedSharding) or len(sharding.device_set) == 1:
        return None
    return _over_auto_axes(sharding) if AxisType.Explicit in sharding.mesh.axis_types else sharding


def _over_auto_axes(sharding: NamedSharding) -> NamedSharding | None:
    mesh = sharding.mesh
    auto = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto}
    entries = (names if isinstance(names, tuple) else (names,) for names in sharding.spec)
    spec = PartitionSpec(*(tuple(name for name in names if name in auto) for names in entries))
    return sharding.update(spec=spec) if auto else None


def _are_alike(x: Any, y: Any) -> bool:
    """Whether they are two arrays with axes that a mesh could divide, of one shape."""
    are_arrays = isinstance(x, jax.Array) and isinstance(y, jax.Array)
    return are_arrays and x is not y and x.ndim > 0 and x.shape == y.shape


def typed_like(x: Array, like: Any) -> Array:
    """Return `x` with the sharding in the type of `like`: on explicit axes, types say where arrays are.

    Operands of a choice (`where`, `select`, `cond`) must have equal types, and with ZeRO the state is divided and the
    parameters are whole. Give the one that is kept the type of the one that it replaces.
    """
    own, target = jax.typeof(x).sharding, jax.typeof(like).sharding
    return x if own == target or target.mesh.empty else jax.sharding.reshard(x, target)


def shape_on_device(x: Array) -> tuple[int, ...]:
    """The shape of what each device has, as far as types say: on explicit axes of a mesh."""
    sharding = jax.typeof(x).sharding
    return sharding.shard_shape(x.shape) if any(sharding.spec) else x.shape


def undivided(x: Array, axes: Iterable[int]) -> Array:
    """The array with these axes whole on every device of a mesh: on explicit axes, JAX doesn't gather them itself."""
    sharding = jax.typeof(x).sharding
    spec = [None if axis in axes else names for axis, names in enumerate(sharding.spec)]
    return x if spec == list(sharding.spec) else jax.sharding.reshard(x, sharding.update(spec=PartitionSpec(*spec)))


def _halves(operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return operands[: len(operands) // 2], operands[len(operands) // 2 :]


def _now(*operands):
    """Eagerly: reshard arrays that are on the devices of `like`."""

    def one(x, like):
        own, target = x.sharding, like.sharding
        if own == target or own.device_set != target.device_set or own.is_equivalent_to(target, x.ndim):
            return x
        return jax.device_put(x, target)

    return list(map(one, *_halves(operands)))


def _types(*operands):
    return list(_halves(operands)[0])


def _jvp(primals, tangents):
    # The result has the values of the first half, and `like` does not influence them.
    return _shard_like.bind(*primals), list(_halves(tangents)[0])


def _batched(operands, axes):
    of_x, of_like = _halves(axes)
    xs, likes = (list(half) for half in _halves(operands))
    places = [i for i, (a, b) in enumerate(zip(of_x, of_like, strict=True)) if a is not None and b is not None]
    ys = [jnp.moveaxis(likes[i], of_like[i], min(of_x[i], likes[i].ndim - 1)) for i in places]
    for i, x in zip(places, _shard_like.bind(*[xs[i] for i in places], *ys), strict=True):
        xs[i] = x
    return xs, list(of_x)


def _lowered(context, *operands):
    xs, likes = map(list, _halves(operands))
    is_alone = getattr(context.module_context.axis_context, "num_devices", None) == 1
    # On one device there is nothing to choose, and the program stays free of sharding groups.
    if getattr(jax.config, "jax_use_shardy_partitioner", True) and not is_alone:
        for i, types in enumerate(zip(*_halves(context.avals_in), strict=True)):
            if types[0].shape != types[1].shape:
                continue
            if isinstance(xs[i].owner, ir.Block):  # where an argument of the program is, the caller has decided
                xs[i] = stablehlo.optimization_barrier([xs[i]])
            group = next(context.module_context.channel_iterator)  # equal in equal programs, for the compilation cache
            for value in (xs[i], likes[i]):
                sdy.sharding_group(value, group)
    return xs


_shard_like.def_impl(_now)
_shard_like.def_abstract_eval(_types)
ad.primitive_jvps[_shard_like] = _jvp
batching.primitive_batchers[_shard_like] = _batched
mlir.register_lowering(_shard_like, _lowered, cacheable=False)
