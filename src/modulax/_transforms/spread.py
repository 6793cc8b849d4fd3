"""Many matrices through one function: in batches bounded by memory, and divided over the devices of a mesh.

`map_matrices` is what Muon shares with other transforms that need whole matrices. Matrices of one shape, and of its
transpose, are joined in batches. Small matrices are in one batch, because one large operation is faster than many small
ones. Batching gains nothing for large ones and takes memory, so that a batch of them has a fixed part of all matrices.

Over a mesh (`_Spread`), each device computes whole matrices of a batch. `jax.shard_map` asks for that, and the compiler
moves the matrices to the devices and back by an all-to-all, wherever they are divided. If a batch has fewer matrices
than there are devices, groups of devices share a matrix along its longer side (`linalg._parts`). `over_devices` is the
same for functions of several arrays, such as blocks and their factors, and `batched_by_memory` bounds its memory. All
this happens on `Auto` axes; `on_auto_axes` leads there from explicit ones.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from .._support.checks import listing
from .._support.groups import exchange
from .._support.placement import even_axis, shard_like
from ..linalg._newton_schulz import Parts

T = TypeVar("T")
Tree = TypeVar("Tree")
Function = Callable[[Array, Parts], Array]  # of a batch of matrices, and of the part of them that a device has

_BATCHES = 16  # of all matrices: each batch takes time to compile, and the memory of a few copies of itself
_SMALL = 1 << 20  # bytes of a batch that are not worth dividing
_SMALL_SHARE = 8 << 20  # the same for each device of a mesh, because each batch has two exchanges
_DECOMPOSED = 32 << 20  # bytes of matrices that a device decomposes at a time: eigenvectors need many times as much
_LEAST_DECOMPOSED = 4 << 20  # the least on a mesh, where a device decomposes an eighth of its matrices at a time


def axis_names(axes: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Convert the axes of a field `over` to a tuple; None stays None."""
    return axes if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def map_matrices(
    function: Function,
    matrices: Sequence[Array],
    over: tuple[str, ...] | None,
    call: str,
    *,
    are_shared: bool = True,
) -> list[Array]:
    """Apply a function to all matrices, which are on the last two axes of the arrays.

    Args:
        function: of a batch of matrices and their `Parts`. The results have the shapes of the matrices, and that of a
            transpose is the transpose of the result.
        matrices: arrays of any number of matrices.
        over: the axes of the mesh to divide the work over; all if None. If empty, each array is computed by itself, as
            the compiler divides it.
        call: the argument to name in the error message about an axis that the mesh doesn't have.
        are_shared: whether several devices share a matrix where there are too few. Otherwise `Parts` is always that of
            whole matrices.
    """
    if over == ():
        return [function(x, Parts()) for x in matrices]
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    spreads = [dataclasses.replace(_Spread.of(x, over, call), are_shared=are_shared) for x in matrices]
    for i, x in enumerate(matrices):
        kinds[(*sorted(x.shape[-2:]), x.dtype, spreads[i])].append(i)
    share = sum(x.nbytes // s.count for x, s in zip(matrices, spreads, strict=True)) // _BATCHES
    out, before = list(matrices), None
    for places in kinds.values():
        # Those of one orientation follow each other, so that few have to be transposed.
        places.sort(key=lambda i: matrices[i].shape[-2:])
        devices = spreads[places[0]]
        most = max(share, _SMALL if devices.count == 1 else _SMALL_SHARE)
        results, before = _in_batches(function, [matrices[i] for i in places], devices, most, before)
        for i, result in zip(places, results, strict=True):
            out[i] = result
    return out


def batched_by_memory(function: Callable[..., Sequence[Array]]) -> Callable[..., Sequence[Array]]:
    """Return a function of batches of matrices that decomposes them, of which each device of a mesh computes a part.

    Each device decomposes some at a time.

    Args:
        function: of arrays with one batch axis, which returns arrays with that axis first.
    """

    def computed(*xs: Array) -> Sequence[Array]:
        devices = number_of_devices(xs[0])
        if devices == 1:
            return some_at_a_time(function, _DECOMPOSED, *xs)
        eighth = sum(x.nbytes for x in xs) // (8 * devices)
        most = min(max(eighth, _LEAST_DECOMPOSED), _DECOMPOSED)
        return over_devices(lambda _, *xs: function(*xs), most=most)(*xs)

    return computed


def some_at_a_time(function: Callable[..., Sequence[Array]], most: int, *xs: Array) -> tuple[Array, ...]:
    """Return the results of a function of batches, in a loop over parts of some bytes, of at least one matrix.

    Args:
        function: of arrays with one batch axis, which returns arrays with that axis first.
        most: bytes of a part.
        xs: the arrays.
    """
    count = len(xs[0])
    rounds = _rounds(count, xs, most)
    padded = [_filled_up(x, count + -count % rounds) for x in xs]
    return tuple(y[:count] for y in _in_rounds(function, rounds, *padded))


def _filled_up(x: Array, count: int) -> Array:
    """So many matrices, with the last one again where there are fewer.

    Not with zeros, for which a function may have no value or no derivative, and a loop no end: with respect to what all
    matrices share, the derivative would be NaN.
    """
    padding = [(0, count - len(x)), *[(0, 0)] * (x.ndim - 1)]
    return jnp.pad(x, padding, mode="edge") if count > len(x) else x


def _rounds(count: int, xs: Sequence[Array], most: int) -> int:
    """The number of rounds of a loop over matrices, of which each has arrays of some bytes, of at least one matrix.

    There may be up to twice as many as needed, if these divide the matrices evenly: to fill up the last round, XLA
    would copy all of them.
    """
    size = max(most * len(xs[0]) // max(sum(x.nbytes for x in xs), 1), 1)
    least = max(-(-count // size), 1)
    return next((n for n in range(least, 2 * least) if count % n == 0), least)


def _in_rounds(function: Callable[..., Sequence[Array]], rounds: int, *xs: Array) -> Sequence[Array]:
    """The results of a function of batches, in a loop over equal parts."""
    if rounds == 1:
        return function(*xs)
    rows = [x.reshape(rounds, -1, *x.shape[1:]) for x in xs]
    ys = jax.lax.map(lambda row: function(*row), rows)
    return tuple(y.reshape(-1, *y.shape[2:]) for y in ys)


def over_devices(
    function: Callable[..., Sequence[Array]],
    axes: Sequence[int] = (),
    to: Sequence[int] = (),
    most: int | None = None,
    shared: Sequence[Array] = (),
) -> Callable[..., Sequence[Array]]:
    """Return a function of batches of matrices, of which each device of a mesh computes a part.

    A matrix is divided over all devices along one axis before and after that, if their number divides it. Then all
    arrays move by an all-to-all, and each device has as much of them as of the others at any time.

    Args:
        function: of `shared` and of arrays with one batch axis, which returns arrays with that axis first.
        axes: the axis of each argument that is divided before; by default, it is 1.
        to: the axis of each result that is divided after, likewise.
        most: bytes of arguments that move to a device and back at a time; all if None.
        shared: arrays that are the same for all matrices.
    """

    def computed(*xs: Array) -> Sequence[Array]:
        devices, count = _Spread.of(xs[0]), len(xs[0])
        if devices.count == 1 or count < 2:
            return function(shared, *xs)
        size = -(-count // devices.count)
        rounds = 1 if most is None else _rounds(size, xs, most)
        size += -size % rounds
        shapes = (jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in xs)
        results = jax.eval_shape(functools.partial(function, shared), *shapes)
        every = (*axes, *[1] * (len(xs) - len(axes)), *to, *[1] * (len(results) - len(to)))
        specs = [devices.along(axis, x) for axis, x in zip(every, (*xs, *results), strict=True)]

        def local(shared: Sequence[Array], *xs: Array) -> Sequence[Array]:
            def moved(*xs: Array) -> tuple[Array, ...]:
                ys = function(shared, *map(devices.whole, xs, specs))
                return tuple(map(devices.divided, ys, specs[len(xs) :]))

            return _in_rounds(moved, rounds, *xs)

        missing = size * devices.count - count
        padded = [jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)]) if missing else x for x in xs]
        given = [_reordered(x, spec, rounds, devices.count) for x, spec in zip(padded, specs, strict=False)]
        ys = jax.shard_map(
            local,
            mesh=devices.mesh,
            in_specs=(PartitionSpec(), *specs[: len(xs)]),
            out_specs=tuple(specs[len(xs) :]),
            axis_names=set(devices.axes),
            check_vma=False,
        )(shared, *given)
        found = [_reordered(y, spec, devices.count, rounds) for y, spec in zip(ys, specs[len(xs) :], strict=True)]
        return tuple(y[:count] for y in found)

    return computed


def _reordered(x: Array, spec: PartitionSpec, first: int, second: int) -> Array:
    """Matrices that are divided by their number, in the order of the devices in place of that of the rounds, or back.

    In each round, the devices get consecutive matrices.
    """
    if len(spec) > 1 or 1 in (first, second):
        return x
    return jnp.swapaxes(x.reshape(first, second, -1, *x.shape[1:]), 0, 1).reshape(x.shape)


def number_of_devices(x: Array) -> int:
    """Return the number of devices of the mesh on which an array is: those that work on a part of it."""
    return _Spread.of(x).count


def divided_along(x: Array, axis: int | None, like: Array | None = None) -> Array:
    """Return an array which is divided over all devices of its mesh along an axis, if they divide it.

    Args:
        x: the array.
        axis: the axis; None for that of `even_axis`.
        like: an array on the mesh; by default, `x` itself.
    """
    devices = _Spread.of(x if like is None else like)
    axis = even_axis(x.shape, devices.count) if axis is None else axis
    if devices.count == 1 or axis is None or x.shape[axis] % devices.count:
        return x
    spec = [None] * x.ndim
    spec[axis] = devices.axes  # pyright: ignore
    return jax.lax.with_sharding_constraint(x, NamedSharding(devices.mesh, PartitionSpec(*spec)))  # pyright: ignore


def _in_batches(
    function: Function, matrices: Sequence[Array], devices: "_Spread", most: int, before: list[Array] | None
) -> tuple[list[Array], list[Array] | None]:
    """The results for matrices of one shape, or of its transpose, and those of the last batch.

    Args:
        function: of a batch of matrices and their `Parts`.
        matrices: arrays of matrices.
        devices: what they are divided over.
        most: bytes of a batch on each device.
        before: results of the batch to wait for.
    """
    stacks = [devices.one_by_one(x.reshape(-1, *x.shape[-2:])) for x in matrices]
    counts, bytes_of_one = list(map(len, stacks)), math.prod(stacks[0].shape[1:]) * stacks[0].dtype.itemsize
    done: list[list[Array]] = [[] for _ in stacks]
    for batch in _batches(counts, _size_of_batch(sum(counts), devices.count, most // bytes_of_one)):
        runs = [_cut(stacks[i], *run) for i, *run in batch]
        if before is not None and devices.count > 1:
            # One batch after the other, or matrices of all of them would be on their way at once.
            runs, _ = jax.lax.optimization_barrier((runs, before))
        before = devices.results(function, runs)
        for (i, *_), result in zip(batch, before, strict=True):
            done[i].append(result)
    joined = [devices.one_by_one(jnp.concatenate(xs)) if len(xs) > 1 else xs[0] for xs in done]
    return [y.reshape(x.shape) for x, y in zip(matrices, joined, strict=True)], before


def _cut(x: Array, start: int, stop: int) -> Array:
    """Consecutive matrices of a stack."""
    return x if stop - start == len(x) else x[start:stop]


def _size_of_batch(count: int, devices: int, most: int) -> int:
    """How many matrices are in a batch: as many for each device, and about as many in each batch."""
    rounds = -(-count // devices)
    batches = -(-rounds // max(most, 1))
    return -(-rounds // batches) * devices


def _batches(counts: Sequence[int], size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Divide stacks of matrices into batches of some size, the last of which may be smaller: number, start and end.

    What remains of all stacks comes last. Were it between, matrices of two stacks would wait at once.
    """
    whole = [count // size * size for count in counts]
    every = itertools.chain(
        ((stack, i) for stack, count in enumerate(whole) for i in range(count)),
        ((stack, i) for stack, count in enumerate(counts) for i in range(whole[stack], count)),
    )
    while batch := list(itertools.islice(every, size)):
        runs = [[i for _, i in run] for _, run in itertools.groupby(batch, key=lambda entry: entry[0])]
        stacks = dict.fromkeys(stack for stack, _ in batch)
        yield [(stack, run[0], run[-1] + 1) for stack, run in zip(stacks, runs, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Spread:
    """The devices that the matrices of a batch are divided over, which are those along some axes of a mesh."""

    mesh: AbstractMesh | None = None
    axes: tuple[str, ...] = ()
    are_shared: bool = True

    @classmethod
    def of(cls, x: Array, over: tuple[str, ...] | None = None, call: str = "") -> "_Spread":
        """Read the mesh from the type of an array.

        On one device, within `jax.shard_map`, and on explicit axes there is nothing to do.

        Raises:
            ValueError: if the mesh has no such axis.
        """
        mesh: Any = jax.typeof(x).sharding.mesh
        if mesh.empty or any(kind != AxisType.Auto for kind in mesh.axis_types):
            return cls()
        names: tuple[str, ...] = mesh.axis_names if over is None else over
        if unknown := [name for name in names if name not in mesh.axis_names]:
            raise ValueError(
                f"`{call}`: the mesh of the parameters has no axis {unknown[0]!r}. It has {listing(mesh.axis_names)}."
            )
        axes = tuple(name for name in names if mesh.shape[name] > 1)
        return cls(mesh, axes) if axes else cls()

    @property
    def count(self) -> int:
        return math.prod(self.mesh.shape[name] for name in self.axes) if self.mesh is not None else 1

    def results(self, function: Function, stacks: Sequence[Array]) -> list[Array]:
        """The results for stacks of matrices, of which some may be transposed, as one batch."""
        shape = max(stacks, key=len).shape[-2:]
        ends = list(itertools.accumulate(map(len, stacks)))
        sharing = self._sharing(ends[-1], shape)
        by_rows: Any = self._by_rows if self._is_found(sharing) else lambda x: x
        turned = [self.one_by_one(by_rows(_oriented(by_rows(x), shape))) for x in stacks]
        y = self._result(function, jnp.concatenate(turned) if len(turned) > 1 else turned[0], sharing)
        parts = [_cut(y, end - len(x), end) for x, end in zip(stacks, ends, strict=True)]
        return [self.one_by_one(_oriented(part, x.shape[-2:])) for part, x in zip(parts, stacks, strict=True)]

    def along(self, axis: int, x: Any) -> PartitionSpec:
        """How an array is divided along an axis over the devices; along the first one if they don't divide it."""
        is_even = x.shape[axis] % self.count == 0 and x.shape[axis] > 0
        return PartitionSpec(*[None] * axis, self.axes) if is_even else PartitionSpec(self.axes)

    # What is sent has the devices on its first axis, both ways. The compiler for TPU would store whole matrices with
    # their number in tiles, which are filled up: nine as sixteen. For 256 devices, each form has 4 MiB of tables.

    def whole(self, x: Array, spec: PartitionSpec) -> Array:
        """On one device: parts of all matrices, which are divided as in `along`, become some whole matrices."""
        if not (axis := len(spec) - 1):
            return x
        n, (count, *shape) = self.count, x.shape
        parts = jnp.moveaxis(self._sent(x.reshape(n, count // n, *shape)), 0, axis)
        shape[axis - 1] *= n
        return parts.reshape(count // n, *shape)

    def divided(self, x: Array, spec: PartitionSpec) -> Array:
        """On one device: some whole matrices become parts of all matrices."""
        if not (axis := len(spec) - 1):
            return x
        n, (count, *shape) = self.count, x.shape
        shape[axis - 1 : axis] = n, shape[axis - 1] // n
        parts = self._sent(jnp.moveaxis(x.reshape(count, *shape), axis, 0))
        return parts.reshape(n * count, *parts.shape[2:])

    def _sent(self, x: Array) -> Array:
        """Each device gets an entry of the array of each device."""
        return exchange(x, self.axes, (tuple(range(self.count)),), 0, 0)

    def one_by_one(self, x: Array) -> Array:
        """Matrices of which no device has only some. Else the compiler may move them before they are cut and joined."""
        if self.mesh is None:
            return x
        free = PartitionSpec.UNCONSTRAINED
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(None, free, free)))

    def _sharing(self, count: int, shape: tuple[int, ...]) -> int:
        """How many devices share a matrix: as many as there are for each."""
        if not self.are_shared:
            return 1
        n = max(
            n for n in range(1, self.count + 1) if self.count % n == 0 and self.count // n >= min(count, self.count)
        )
        # A batch isn't divided further, such as 48 matrices for 64 devices into 32 for pairs and 16 for groups of four:
        # Muon would compute 1.19 in place of 1.52 of its share on 64 H100, and send twice as much, 0.69 GB.
        # Two of them would add up the Gram matrices of a square one in the time that they save.
        return 1 if n == 2 and max(shape) < 2 * min(shape) else n

    def _is_found(self, sharing: int) -> bool:
        """Whether the compiler finds the all-to-all by itself, along the axis that is divided."""
        return sharing == 1 and len(self.axes) == 1

    def _by_rows(self, x: Array) -> Array:
        """Matrices that a TPU stores by rows.

        An all-to-all takes one copy less if matrices are stored by what it divides. The compiler would transpose the
        gradients and moments of all layers for that, where a batch needs a few. On a mesh with other axes, and on other
        platforms, it would gather matrices to change how they are stored.
        """
        if self.mesh is None or self.mesh.size > self.count:
            return x
        by_rows = functools.partial(with_layout_constraint, layouts=Layout(tuple(range(x.ndim))))
        return jax.lax.platform_dependent(x, tpu=by_rows, default=lambda x: x)

    def _result(self, function: Function, x: Array, sharing: int) -> Array:
        devices, count = self.count, len(x)
        if devices == 1:
            # XLA for CPU takes longer for the products of a batch of one.
            return function(x, Parts()) if count > 1 else function(x[0], Parts())[None]
        at_once = devices // sharing
        is_tall = x.shape[1] >= x.shape[2]  # the first axis of a square is what is usually divided
        long = 1 if is_tall else 2
        local: Callable[[Array], Array]
        padding = [(0, 0)] * 3
        if self._is_found(sharing):
            spec, local = PartitionSpec(self.axes), lambda x: self._by_rows(function(self._by_rows(x), Parts()))
        else:
            padding[long] = (0, -x.shape[long] % devices)
            spec = PartitionSpec(*[None] * long, self.axes)
            local = functools.partial(self._local, function, sharing, is_tall, x.shape[long])
        padded = _filled_up(x, count + -count % at_once)
        padded = self.one_by_one(jnp.pad(padded, padding) if padding[long][1] else padded)
        y = jax.shard_map(
            local, mesh=self.mesh, in_specs=spec, out_specs=spec, axis_names=set(self.axes), check_vma=False
        )(padded)
        # Otherwise the compiler may leave the results where they were computed, and gather them later.
        return shard_like(y, padded)[:count, : x.shape[1], : x.shape[2]]

    def _local(self, function: Function, sharing: int, is_tall: bool, length: int, x: Array) -> Array:
        """On one device: a part of the longer side of all matrices becomes a larger part of few of them, and back.

        Whole matrices get the length of that side, without the zeros that fill it up. In parts of matrices these stay.
        """
        at_once = self.count // sharing
        long = 1 if is_tall else 2
        neighbors = tuple(tuple(range(first, first + at_once)) for first in range(0, self.count, at_once))
        parts = Parts(sharing, is_tall, self.axes, tuple(zip(*neighbors, strict=True))) if sharing > 1 else Parts()
        whole = exchange(x, self.axes, neighbors, 0, long)
        filled = 0 if sharing > 1 else whole.shape[long] - length
        if not filled:
            return exchange(function(whole, parts), self.axes, neighbors, long, 0)
        y = function(jax.lax.slice_in_dim(whole, 0, length, axis=long), parts)
        padding = [(0, filled if axis == long else 0) for axis in range(3)]
        return exchange(jnp.pad(y, padding), self.axes, neighbors, long, 0)


def _oriented(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape[-2:] == shape else jnp.swapaxes(x, -1, -2)


def on_auto_axes(function: Callable[[T, Tree], Tree], tree: Tree) -> Callable[[T, Tree], Tree]:
    """Return a function of an owner and a tree, called with the explicit axes of a mesh turned into `Auto` ones.

    JAX infers no sharding for the product of a matrix and its transpose. The results have the types of the arguments.

    Args:
        function: of the owner and the tree, whose result is like the tree. It reads no other values: those of schedules
            are on the mesh, too.
        tree: the tree.
    """
    types = jtu.tree_map(lambda x: jax.typeof(x).sharding, tree)
    meshes = (t.mesh for t in jtu.tree_leaves(types) if AxisType.Explicit in t.mesh.axis_types)
    if (mesh := next(meshes, None)) is None:
        return function
    whole = NamedSharding(mesh, PartitionSpec())  # of a step count that was made without a mesh
    found: Any = jtu.tree_map(lambda t: whole if t.mesh.empty else t, types)
    called: Any = jax.sharding.auto_axes(function, out_sharding=found)
    return called
