"""Blocks of matrices, and what Shampoo and SOAP compute of them and of their factors: square matrices for each side.

`on_blocks` is that for all leaves. On one device, each leaf is computed by itself. Over a mesh, each device computes
whole blocks: an all-to-all brings them, with their factors, and another one brings the results back (`over_devices`).
Before and after that, the devices divide the rows of factors, and of blocks the rows or the columns.
"""

import collections
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._support.arithmetic import in_dtype, scalar_like
from .._support.placement import cuts_tiles, shard_like
from ..tree._leafmap import map_leaves, map_with
from .matrices import Matrix
from .outer_products import SIDES, Side, applied, averaged, in_batches, outer_product
from .spread import divided_along, number_of_devices, over_devices

T = TypeVar("T", bound=Any)  # a NamedTuple: what the state has of one leaf
R = TypeVar("R")
Function = Callable[..., tuple[Array, ...]]  # of something static, blocks and factors

_ROUNDS = 4  # blocks for each device, with which a rest that only some devices have is small


class Layout(NamedTuple):
    """How an array is blocks of matrices.

    Args:
        matrix: how it is matrices; None for one column.
        size: the longest side of a block; None for whole matrices, without axes that count blocks.
    """

    matrix: Matrix | None
    size: int | None = None

    def of(self, x: Array) -> Array:
        y = x.reshape(x.size, 1) if self.matrix is None else self.matrix.of(x)
        return y if self.size is None else blocks(y, self.size)

    def back(self, y: Array, shape: tuple[int, ...]) -> Array:
        """The array of some shape with these blocks."""
        if self.size is not None:
            y = unblocked(y, self._sides(shape))
        return y.reshape(shape) if self.matrix is None else self.matrix.back(y)

    def sides(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
        """For rows and columns of an array of some shape, the number of blocks and their length."""
        rows, columns = self._sides(shape)
        size = max(rows, columns) if self.size is None else self.size
        return _divided(rows, size), _divided(columns, size)

    def axis(self, x: Array) -> int:
        """The axis of a block that a mesh divides."""
        sides = self._sides(x.shape)
        return _axis(sides, max(sides) if self.size is None else self.size, number_of_devices(x))

    def _sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return (math.prod(shape), 1) if self.matrix is None else self.matrix.size


class Leaf(NamedTuple):
    """The arguments of a function of blocks for one leaf.

    Args:
        static: what it gets first.
        layout: how arrays are blocks.
        arrays: arrays in the shape of the leaf.
        factors: matrices for each block; None for a side without one.
    """

    static: Hashable
    layout: Layout
    arrays: tuple[Array, ...]
    factors: tuple[Array | None, ...]


def on_blocks(function: Function, leaves: Sequence[Leaf], *, to_factors: bool = False) -> list[tuple[Array, ...]]:
    """Apply a function to the blocks of each leaf and their factors, of which each device of a mesh computes a part.

    Over a mesh, leaves with few blocks are joined, so that all devices have about as many. One batch follows the other,
    or arrays of all of them would be on their way at once.

    Args:
        function: of something static, blocks and factors, with any axes before those of a matrix.
        leaves: the arguments for each leaf.
        to_factors: whether the results are factors, and not arrays in the shape of the leaf.
    """
    out: list[tuple[Array, ...]] = [()] * len(leaves)
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    alone: list[int] = []
    for i, leaf in enumerate(leaves):
        (alone if number_of_devices(leaf.arrays[0]) == 1 else kinds[_kind(leaf)]).append(i)
    columns = [(leaves[i].arrays, leaves[i].factors) for i in alone]
    found = map_with(functools.partial(_alone, function, to_factors), [leaves[i][:2] for i in alone], columns)
    for i, result in zip(alone, found, strict=True):
        out[i] = result
    before: list[tuple[Array, ...]] = []
    for places in kinds.values():
        for batch in _rounds(places, leaves):
            before = _at_once(function, [leaves[i] for i in batch], to_factors, before)
            for i, result in zip(batch, before, strict=True):
                out[i] = result
    return out


def leaf_by_leaf(
    function: Callable[..., Sequence[R]], matrices: Sequence[Matrix | None], *lists: Sequence[Any]
) -> Sequence[R]:
    """Call a function of the lists of what all leaves have, which returns a list with an entry for each of them.

    On one device, it is called with one leaf at a time, so that leaves of one kind are traced once.

    Args:
        function: of `matrices` and the other lists.
        matrices: how leaves are matrices.
        lists: arrays for each leaf, and then anything else.
    """
    if any(number_of_devices(x) > 1 for x in lists[0]):
        return function(matrices, *lists)

    def alone(matrix: Matrix | None, *row: Any) -> R:
        (result,) = function([matrix], *([x] for x in row))
        return result

    return map_with(alone, matrices, list(zip(*lists, strict=True)))


def turned(
    turn: Callable[..., Array], layouts: Sequence[Layout], rows: Sequence[tuple[Array, ...]], states: Sequence[Any]
) -> list[tuple[Array, ...]]:
    """Return the arrays of all leaves in the bases of their blocks, or back; those without bases as they are.

    Args:
        turn: `rotated` or `rotated_back`.
        layouts: how arrays are blocks.
        rows: one or more arrays for each leaf.
        states: what has their bases, as `left_basis` and `right_basis`.
    """
    out, bases = list(rows), [(s.left_basis, s.right_basis) for s in states]
    places = [i for i, pair in enumerate(bases) if any(basis is not None for basis in pair)]
    found = on_blocks(_turned, [Leaf(turn, layouts[i], rows[i], bases[i]) for i in places])
    for i, xs in zip(places, found, strict=True):
        out[i] = xs
    return out


def _turned(turn: Any, *given: Array | None) -> tuple[Array, ...]:
    *xs, left, right = given
    return tuple(turn(x, left, right) for x in xs)


def gathered(
    decay: Any, layouts: Sequence[Layout], arrays: Sequence[Array], states: Sequence[T], roots: Any = None
) -> list[T]:
    """Return the states with new averages or sums of outer products, `left` and `right`, if they have any.

    Args:
        decay: the decay rate; one for sums.
        layouts: how arrays are blocks.
        arrays: the gradients, in the dtype in which their products are computed, or a smaller one.
        states: the states before; averages keep their dtypes.
        roots: for each leaf, roots of the left and right side, which are between the matrices in the products of the
            other side, as in KL-Shampoo.
    """
    totals = [{side: x for side in SIDES if (x := getattr(s, side)) is not None} for s in states]
    places = [i for i, total in enumerate(totals) if total]
    out, leaves = list(states), []
    for i in places:
        sides = tuple((side, jnp.promote_types(arrays[i].dtype, x.dtype)) for side, x in totals[i].items())
        leaves.append(Leaf(sides, layouts[i], (arrays[i],), (None, None) if roots is None else roots[i]))

    def added(_: None, like: Array, olds: dict[Side, Array], products: tuple[Array, ...]) -> dict[Side, Array]:
        b = scalar_like(decay, like)
        return {side: averaged(b, old, x) for (side, old), x in zip(olds.items(), products, strict=True)}

    found = on_blocks(_outer_products, leaves, to_factors=True)
    columns = [(arrays[i], totals[i], products) for i, products in zip(places, found, strict=True)]
    for i, new in zip(places, map_leaves(added, None, columns), strict=True):
        out[i] = out[i]._replace(**new)
    return out


def _outer_products(
    sides: tuple[tuple[Side, Any], ...], x: Array, left_root: Array | None, right_root: Array | None
) -> tuple[Array, ...]:
    between = {"left": applied(x, right_root, "right"), "right": applied(x, left_root, "left")}
    return tuple(outer_product(in_dtype(between[side], dtype), side) for side, dtype in sides)


def _alone(
    function: Function,
    to_factors: bool,
    static: tuple[Hashable, Layout],
    arrays: tuple[Array, ...],
    factors: tuple[Array | None, ...],
) -> tuple[Array, ...]:
    """The results for one leaf."""
    first, layout = static
    ys = function(first, *map(layout.of, arrays), *factors)
    return ys if to_factors else tuple(layout.back(y, arrays[0].shape) for y in ys)


def _kind(leaf: Leaf) -> Hashable:
    """What leaves have in common that are joined in a batch."""
    (_, r), (_, c) = leaf.layout.sides(leaf.arrays[0].shape)
    shapes = tuple(None if x is None else (x.shape[-2:], x.dtype) for x in leaf.factors)
    return leaf.static, leaf.layout.axis(leaf.arrays[0]), r, c, tuple(x.dtype for x in leaf.arrays), shapes


def _rounds(places: Sequence[int], leaves: Sequence[Leaf]) -> Iterator[list[int]]:
    """Divide the places of leaves into batches with some blocks for each device; the last may have fewer."""
    batch, count = [], 0.0
    for i in places:
        x = leaves[i].arrays[0]
        (_, r), (_, c) = leaves[i].layout.sides(x.shape)
        batch, count = [*batch, i], count + x.size / max(r * c, 1)
        if count >= _ROUNDS * number_of_devices(x):
            yield batch
            batch, count = [], 0.0
    if batch:
        yield batch


def _at_once(
    function: Function, leaves: Sequence[Leaf], to_factors: bool, before: list[tuple[Array, ...]]
) -> list[tuple[Array, ...]]:
    """The results for leaves of one kind, as one batch, which follows other results."""
    given = [(leaf.arrays, leaf.factors) for leaf in leaves]
    given, _ = jax.lax.optimization_barrier((given, before))
    static, layout, (x, *_), factors = leaves[0]
    is_there = [True] * len(leaves[0].arrays) + [y is not None for y in factors]

    def with_none(*present: Array) -> tuple[Array, ...]:
        ys = iter(present)
        return function(static, *(next(ys) if there else None for there in is_there))

    rows = [
        [*map(leaf.layout.of, arrays), *(y for y in factors if y is not None)]
        for leaf, (arrays, factors) in zip(leaves, given, strict=True)
    ]
    axis = 3 + layout.axis(x)
    spread = over_devices(with_none, [axis] * len(leaves[0].arrays), 1 if to_factors else axis)
    found = in_batches(spread, *zip(*rows, strict=True))
    if to_factors:
        return found
    rows = [(leaf.layout, leaf.arrays[0], ys) for leaf, ys in zip(leaves, found, strict=True)]
    # Otherwise the compiler may leave the results where they were computed, and gather them later.
    return [tuple(shard_like(layout.back(y, x.shape), x) for y in ys) for layout, x, ys in rows]


def blocks(x: Array, size: int) -> Array:
    """Divide matrices into blocks: the axes of the rows and the columns of blocks, before those within a block.

    Where a side is no multiple of the size of its blocks, the last ones are filled up with zeros.

    Args:
        x: the matrices.
        size: the longest side of a block.
    """
    *batch, rows, columns = x.shape
    (m, r), (n, c) = _divided(rows, size), _divided(columns, size)
    padding = [(0, 0)] * len(batch) + [(0, m * r - rows), (0, n * c - columns)]
    x = jnp.pad(x, padding) if m * r > rows or n * c > columns else x
    axis = _axis((rows, columns), size, number_of_devices(x))
    return jnp.swapaxes(_moved(divided_along(x, axis).reshape(*batch, m, r, n, c), axis), -3, -2)


def _moved(x: Array, axis: int) -> Array:
    """The same array, whose blocks a mesh divides along an axis. It may divide the array across blocks before."""
    if number_of_devices(x) == 1:
        return x
    *batch, m, r, n, c = x.shape
    flat = (*batch, m, r, n * c) if axis == -2 else (*batch, m * r, n, c)
    return divided_along(x.reshape(flat), axis).reshape(x.shape)


def _axis(shape: tuple[int, int], size: int, devices: int) -> int:
    """The axis of a block that a mesh divides.

    It is the one along which `state_sharding` divides a matrix over as many devices, if each device then has parts of a
    block, or whole ones. Else it is that of the side with fewer blocks, because parts of the other one are not parts of
    each block.

    Args:
        shape: the number of rows and columns of a matrix.
        size: the longest side of a block.
        devices: their number.
    """
    sides = [_divided(length, size) for length in shape]
    place = int(shape[1] > shape[0] and not cuts_tiles(shape[1], devices))
    count, length = sides[place]
    is_even = length % devices == 0 and (devices % count == 0 or count % devices == 0)
    if is_even and count * length == shape[place]:
        return place - 2
    (rows, height), (columns, width) = sides
    return -2 if width == 1 or (rows, -height) <= (columns, -width) else -1


def unblocked(x: Array, shape: tuple[int, int]) -> Array:
    """Return the matrices that were divided into blocks.

    Args:
        x: the blocks.
        shape: the number of rows and columns of a matrix.
    """
    *batch, m, n, r, c = x.shape
    axis = _axis(shape, max(r, c), number_of_devices(x))
    x = _moved(jnp.swapaxes(x, -3, -2), axis).reshape(*batch, m * r, n * c)
    return divided_along(x, axis)[..., : shape[0], : shape[1]]


def padding(shape: tuple[int, int], size: int, side: Side) -> np.ndarray:
    """Return which rows or columns of the blocks fill them up, with the axes of blocks before it.

    Args:
        shape: the number of rows and columns of a matrix.
        size: the longest side of a block.
        side: whether rows or columns.
    """
    length = shape[SIDES.index(side)]
    number, within = _divided(length, size)
    filled = (np.arange(number * within) >= length).reshape(number, within)
    return filled[:, None] if side == "left" else filled[None]


def _divided(length: int, size: int) -> tuple[int, int]:
    """The number of blocks along a side, and their length."""
    return max(-(-length // size), 1), min(length, size)
