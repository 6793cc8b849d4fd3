"""New parameters of ZeRO-1: each device computes a part of them, and the parts are gathered into the donated buffers.

XLA would gather the updates of all parameters before it adds them: a GPT of 1.3 billion parameters took 3 GiB of
temporary memory for that on a TPU, and 6 GiB on a GPU, which gathers along the first axis alone and then transposes.
Here a loop gathers pieces of several parameters at a time. Compilers drop optimization barriers, and keep the order of
a loop.

What is divided is known when a program is lowered: the shardings of its arguments are written in it. So parameters that
are divided like their state, as in FSDP, and those that are not donated, cost nothing and stay as they are. So does all
in a program for a CPU, whose memory is large: XLA runs independent collectives there in any order, also in another one
on another device, and confuses them.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

_LEAST = 1 << 20  # bytes of a parameter that are worth a loop
_PIECE = 64 << 20  # the most bytes of one parameter that are gathered at a time, if its shape allows it
_AT_ONCE = 128 << 20  # the same for all parameters of a loop
_LANES = 128
_TILE = (32, _LANES)  # rows and columns of the largest tile of a TPU, in which arrays are stored

_NAME = "gathered_parameters"  # also in profiles
_LEFT_OUT = frozenset(["cpu"])  # platforms
# Of any number of parameters, which are gathered in groups, and of whether they are new.
_gathered = Primitive(f"modulax_{_NAME}")
_gathered.multiple_results = True


def gathered_into(
    old: Sequence[Array],
    new: Sequence[Array],
    beside: Callable[[], Sequence[Array | None]],
    is_new: Array,
    *,
    is_certain: bool,
) -> list[Array]:
    """Return the new parameters, which a compiled program may write into the buffers of the old ones.

    Args:
        old: the parameters.
        new: the new parameters.
        beside: returns for each parameter an array of its shape in the state, which may be divided further; or None.
        is_new: whether they may differ from the old ones; otherwise nothing is sent.
        is_certain: whether `is_new` is known to be true.
    """
    out = list(new)
    if not _are_divided(old):  # matching state and parameters takes time
        return out
    parts = beside()
    places = [i for i, part in enumerate(parts) if part is not None and part.shape == old[i].shape]
    if places:
        operands = itertools.chain(*((new[i], old[i], parts[i]) for i in places))
        for i, x in zip(places, _gathered.bind(*operands, is_new, is_certain=is_certain), strict=True):
            out[i] = x
    return out


def _are_divided(arrays: Iterable[Any]) -> bool:
    """Whether XLA divides one of the arrays over a mesh: not within `jax.shard_map`, nor on explicit axes."""
    meshes = {jax.typeof(x).sharding.mesh for x in arrays}
    return any(mesh.size > 1 and all(kind == AxisType.Auto for kind in mesh.axis_types) for mesh in meshes)


@dataclasses.dataclass(frozen=True)
class _Move:
    """How the parts of a parameter become whole: along an axis, over some axes of the mesh, in a number of pieces."""

    mesh: Any
    whole: PartitionSpec
    part: PartitionSpec
    axis: int
    over: tuple[str, ...]
    cut: int  # the axis of the pieces
    count: int


def _in_program(
    moves: Sequence[_Move], platforms: Sequence[str], is_certain: bool, is_new: Array, *arrays: Array
) -> list[Array]:
    """The parameters, with new values of which each device computes a part.

    Args:
        moves: one for each parameter.
        platforms: what is compiled for.
        is_certain: whether `is_new` is known to be true.
        is_new: whether the new values differ from the old ones.
        arrays: the new values of all parameters, and then the old ones.
    """
    count, mesh = len(moves), moves[0].mesh
    whole, part = [move.whole for move in moves], [move.part for move in moves]

    def local(new: list[Array], old: list[Array], is_new: Array) -> list[Array]:
        def gathered(out: list[Array]) -> list[Array]:
            out = list(out)
            for group in _groups(moves, out):
                gather = functools.partial(_gather, [(moves[i], new[i]) for i in group], platforms)
                body, count = jax.named_scope(_NAME)(gather), moves[group[0]].count
                for i, x in zip(group, jax.lax.fori_loop(0, count, body, [out[i] for i in group]), strict=True):
                    out[i] = x
            return out

        if is_certain:
            return gathered(old)
        # A loop of at most one round works in place, where a `cond` would copy all parameters.
        return jax.lax.fori_loop(0, is_new.astype(jnp.int32), lambda _, out: gathered(out), old)

    specs = (part, whole, PartitionSpec())
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)
    # What else is computed from new parameters may keep them whole, and XLA would not see that they may differ.
    found = mapped(jax.lax.optimization_barrier(list(arrays[:count])), list(arrays[count:]), is_new)
    # Otherwise XLA may divide the result of `shard_map` again.
    return [jax.lax.with_sharding_constraint(x, NamedSharding(mesh, s)) for x, s in zip(found, whole, strict=True)]


def _groups(moves: Sequence[_Move], old: Sequence[Array]) -> Iterator[list[int]]:
    """The places of parameters that a loop gathers together: of one number of pieces, of bounded size."""
    by_count = collections.defaultdict[int, list[int]](list)
    for i, move in enumerate(moves):
        by_count[move.count].append(i)
    for count, places in by_count.items():
        ends = itertools.accumulate(old[i].nbytes // count for i in places)
        for _, group in itertools.groupby(zip(places, ends, strict=True), key=lambda entry: entry[1] // _AT_ONCE):
            yield [i for i, _ in group]


def _gather(
    parts: Sequence[tuple[_Move, Array]], platforms: Sequence[str], step: Array, out: list[Array]
) -> list[Array]:
    """Gather one piece of each parameter, and write it into its place."""
    written = []
    for (move, x), y in zip(parts, out, strict=True):
        size = y.shape[move.cut] // move.count
        piece = jax.lax.dynamic_slice_in_dim(x, step * size, size, move.cut)
        whole = _whole(move, piece, is_tiled="tpu" in platforms)
        written.append(jax.lax.dynamic_update_slice_in_dim(y, whole, step * size, move.cut))
    return written


def _whole(move: _Move, piece: Array, *, is_tiled: bool) -> Array:
    """Gather an array along its axis: NCCL gathers along the first one, and a TPU along any."""
    if is_tiled:
        return jax.lax.all_gather(piece, move.over, axis=move.axis, tiled=True)
    shape = (*piece.shape[: move.axis], -1, *piece.shape[move.axis + 1 :])
    return jnp.moveaxis(jax.lax.all_gather(piece, move.over), 0, move.axis).reshape(shape)


# --- What a program says about its arguments -----------------------------------------------------


def _move(old: ir.Value, part: ir.Value, aval: Any) -> _Move | None:
    """How a parameter is gathered; None if it is not donated, or divided as its state is, or if that is not known."""
    of_old, of_part = _attributes(old), _attributes(part)
    if not {"jax.buffer_donor", "tf.aliasing_output"} & of_old.keys():
        return None
    whole, finer = _spec(of_old), _spec(of_part)
    if whole is None or finer is None:
        return None
    axes = [i for i, (a, b) in enumerate(zip(whole, finer, strict=True)) if a != b]
    if len(axes) != 1 or finer[axes[0]][: len(whole[axes[0]])] != whole[axes[0]]:
        return None
    (axis,) = axes
    over = finer[axis][len(whole[axis]) :]
    mesh = aval.sharding.mesh
    specs = PartitionSpec(*whole), PartitionSpec(*finer)
    cut, count = _pieces(NamedSharding(mesh, specs[0]).shard_shape(aval.shape), aval.dtype.itemsize, axis)
    return _Move(mesh, *specs, axis, over, cut, count) if count > 1 else None


def _attributes(value: ir.Value) -> dict[str, Any]:
    """What JAX notes for an argument of the program; nothing for any other value."""
    function = value.owner.owner if isinstance(value.owner, ir.Block) else None
    if function is None or "arg_attrs" not in function.attributes:
        return {}
    noted: Any = function.attributes["arg_attrs"]
    noted = noted[ir.BlockArgument(value).arg_number]
    return {entry.name: entry.attr for entry in noted}


_sdy: Any = sdy  # whose stubs lack the constructors that convert an attribute


def _spec(noted: dict[str, Any]) -> list[tuple[str, ...]] | None:
    """The axes of the mesh for each dimension; None if they are not known, or if one is split."""
    if "sdy.sharding" not in noted:
        return None
    dimensions = _sdy.TensorShardingAttr(noted["sdy.sharding"]).dimension_shardings
    axes = [list(map(_sdy.AxisRefAttr, _sdy.DimensionShardingAttr(each).axes)) for each in dimensions]
    if any(axis.sub_axis_info is not None for axis in itertools.chain(*axes)):
        return None
    return [tuple(axis.name for axis in each) for each in axes]


def _pieces(shape: tuple[int, ...], itemsize: int, axis: int) -> tuple[int, int]:
    """The axis along which an array is cut, and the number of pieces, which are equal and have whole tiles.

    Args:
        shape: of what a device has of the parameter.
        itemsize: bytes of an entry.
        axis: the axis along which the parts are gathered, which is not cut.
    """
    size = math.prod(shape) * itemsize
    wanted = max(-(-size // _PIECE), 2)
    found = (0, 1)
    for cut, length in enumerate(shape):
        unit = (1, *_TILE)[max(cut - len(shape) + 3, 0)]
        if cut == axis or length % unit or size < _LEAST:
            continue
        counts = [n for n in _divisors(length // unit) if n <= wanted or n < 2 * wanted]
        if (count := max(counts)) > found[1]:
            found = (cut, count)
    return found


def _divisors(number: int) -> Iterable[int]:
    return (n for n in range(1, number + 1) if number % n == 0)


# --- The primitive -------------------------------------------------------------------------------


def _first(*operands, is_certain=False):
    """The new parameters: the operands are these, each with the old one and its part of the state, and one more."""
    del is_certain
    return list(operands[:-1:3])


def _jvp(primals, tangents, is_certain):
    return _gathered.bind(*primals, is_certain=is_certain), _first(*tangents)


def _batched(operands, axes, is_certain):
    del is_certain
    return _first(*operands), _first(*axes)


def _lowered(context, *operands, is_certain):
    new, old, parts = (list(operands[i:-1:3]) for i in range(3))
    platforms = context.module_context.platforms
    if not _LEFT_OUT.isdisjoint(platforms):
        return new
    avals, of_is_new = context.avals_in[:-1:3], context.avals_in[-1]
    found = map(_move, old, parts, avals)
    moves = {i: move for i, move in enumerate(found) if move is not None}
    if moves:
        of_moves = [avals[i] for i in moves]
        function = functools.partial(_in_program, list(moves.values()), platforms, is_certain)
        inner = context.replace(primitive=None, avals_in=[of_is_new, *of_moves, *of_moves], avals_out=of_moves)
        values = mlir.lower_fun(function)(inner, operands[-1], *[new[i] for i in moves], *[old[i] for i in moves])
        for i, x in zip(moves, values, strict=True):
            new[i] = x
    return new


_gathered.def_impl(_first)
_gathered.def_abstract_eval(_first)
ad.primitive_jvps[_gathered] = _jvp
batching.primitive_batchers[_gathered] = _batched
mlir.register_lowering(_gathered, _lowered, cacheable=False)
