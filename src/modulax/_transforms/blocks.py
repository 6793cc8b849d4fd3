"""Arrays as blocks of matrices (`Layout`), and functions of blocks over the devices of a mesh (`over_mesh`).

Each device computes whole blocks: an all-to-all brings them, with what belongs to them, and another one brings the
results back (`over_devices`). Before and after that, the devices divide the rows of factors, and of blocks the rows or
the columns.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._support.placement import cuts_tiles, even_axis, shard_like
from .matrices import Matrix
from .spread import divided_along, number_of_devices, over_devices
from .stages import Stage, Staged

Row = tuple[PyTree, PyTree]  # of arrays in the shape of a leaf, or its blocks, and of arrays that belong to the blocks

_ROUNDS = 4  # blocks for each device, with which a rest that only some devices have is small


class Layout(NamedTuple):
    """How an array is blocks of matrices.

    Args:
        matrix: how it is matrices; an array that isn't one is one column.
        size: the longest side of a block; None for whole matrices, without axes that count blocks.
        is_array: whether the array is not a matrix and keeps its shape.
        parts: how each of several matrices that are joined in the array is blocks; empty if there is one.
        is_whole: whether `map_whole` of a rule is computed.
    """

    matrix: Matrix
    size: int | None = None
    is_array: bool = False
    parts: "tuple[Layout, ...]" = ()
    is_whole: bool = True

    def of(self, x: Array) -> Array:
        if self.is_array:
            return x
        y = self.matrix.of(x)
        return y if self.size is None else blocks(y, self.size)

    def back(self, y: Array) -> Array:
        """The array with these blocks."""
        if self.is_array:
            return y
        return self.matrix.back(y if self.size is None else unblocked(y, self.matrix.size))

    def split(self, row: Row) -> list[Row]:
        """The rows of `parts`, of a row with the array; the row itself if there are none."""
        if not self.parts:
            return [row]
        (leaves, structure), others = jtu.tree_flatten(row[0]), row[1]
        columns = zip(*map(self.matrix.pieces, leaves), strict=True)
        own = {name: xs if len(self.parts) > 1 else [xs] for name, xs in others.items()}
        return [(structure.unflatten(xs), {name: own[name][k] for name in own}) for k, xs in enumerate(columns)]

    def join(self, rows: Sequence[Row]) -> Row:
        """The row with these rows of `parts`: what belongs to the matrices is a tuple if there are several parts."""
        if not self.parts:
            return rows[0]
        arrays, others = zip(*rows, strict=True)
        own = {name: tuple(each[name] for each in others) for name in others[0]}
        joined = jtu.tree_map(lambda *xs: self.matrix.joined(xs), *arrays)
        return joined, own if len(rows) > 1 else others[0]

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """For rows and columns, the number of blocks and their length."""
        rows, columns = self.matrix.size
        return _divided(rows, self.longest), _divided(columns, self.longest)

    @property
    def longest(self) -> int:
        """The longest side that a block may have."""
        return max(self.matrix.size) if self.size is None else self.size

    def filled(self, side: int) -> np.ndarray:
        """Which rows (side 0) or columns (side 1) fill a block up, with the axes that count blocks before them."""
        length, (number, within) = self.matrix.size[side], self.sides[side]
        filled = (np.arange(number * within) >= length).reshape(number, within)
        return filled[0] if self.size is None else np.expand_dims(filled, 1 - side)

    @property
    def is_padded(self) -> bool:
        """Whether zeros fill blocks up."""
        pairs = zip(self.matrix.size, self.sides, strict=True)
        return not self.is_array and any(number * length > side for side, (number, length) in pairs)

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes before those of a block."""
        of_matrix = () if self.is_array else tuple(self.matrix.shape[axis] for axis in self.matrix.batch)
        return of_matrix if self.size is None else (*of_matrix, *(number for number, _ in self.sides))


def split_parts(layouts: Iterable[Layout], rows: Iterable[Row]) -> list[tuple[Layout, Row]]:
    """Return the layouts and rows of leaves, with each of several matrices that are joined in one array on its own."""
    pairs = zip(layouts, rows, strict=True)
    return [part for a, row in pairs for part in zip(a.parts or (a,), a.split(row), strict=True)]


def join_parts(layouts: Iterable[Layout], rows: Iterable[Row]) -> list[Row]:
    """Return the rows of leaves with such rows."""
    found = iter(rows)
    return [layout.join(list(itertools.islice(found, len(layout.parts) or 1))) for layout in layouts]


class Leaf(NamedTuple):
    """A leaf, and what a function of its blocks gets.

    Args:
        place: its number.
        layout: how it is blocks.
        row: the two trees.
        devices: those that compute it together.
        is_alone: whether one device computes some of its blocks at a time.
    """

    place: int
    layout: Layout
    row: Row
    devices: int
    is_alone: bool

    @property
    def is_apart(self) -> bool:
        """Whether one device computes the whole leaf at once."""
        return self.devices == 1 and not self.is_alone

    @property
    def block(self) -> tuple[int, int]:
        """The number of rows and columns of a block."""
        (_, rows), (_, columns) = self.layout.sides
        return rows, columns

    @property
    def axis(self) -> int:
        """The axis of a block that a mesh divides."""
        return _axis(self.layout.matrix.size, self.layout.longest, self.devices)

    @property
    def of_one(self) -> Row:
        """The shapes and dtypes of the row for one block."""
        arrays, others = self.row
        of_others = jtu.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[len(self.layout.batch) :], x.dtype), others)
        return jtu.tree_map(lambda x: jax.ShapeDtypeStruct(self.block, x.dtype), arrays), of_others

    @property
    def kind(self) -> Hashable:
        """What leaves have in common that are joined in a batch."""
        shapes, structure = jtu.tree_flatten(self.of_one)
        whole = _first(self.row).shape if self.layout.is_array else None
        place = self.place if self.is_alone else None
        return self.devices, self.block, self.axis, structure, tuple(shapes), whole, place

    def divided(self, form: tuple[tuple[int, ...], bool]) -> int:
        """The axis along which the devices of a mesh divide a batch, for a form as in `Staged.form`."""
        shape, is_of_entries = form
        if is_of_entries and shape == self.block:
            return 3 + self.axis
        if is_of_entries and shape == self.block[::-1]:
            return -self.axis
        axis = even_axis(shape, self.devices)
        return min(len(shape), 1) if axis is None else 1 + axis


def _first(tree: PyTree) -> Array:
    return jtu.tree_leaves(tree)[0]


def over_mesh(staged: Staged, leaves: Sequence[Leaf]) -> list[Row]:
    """The results for leaves of one kind on a mesh, in batches with some blocks for each device."""
    found: list[Row] = []
    last: list[Row] = []
    batch, count = [], 0.0
    for i, leaf in enumerate(leaves, 1):
        x = _first(leaf.row)
        batch, count = [*batch, leaf], count + x.size / max(math.prod(leaf.block), 1)
        if i == len(leaves) or count >= _ROUNDS * leaf.devices:
            last = _joined(staged, batch, last)
            found += last
            batch, count = [], 0.0
    return found


def _joined(staged: Staged, leaves: Sequence[Leaf], before: list[Row]) -> list[Row]:
    """The results for leaves of one kind, which are joined where whole blocks are needed, after other results."""
    layouts, rows = [leaf.layout for leaf in leaves], [leaf.row for leaf in leaves]

    def together(
        stage: Stage, shared: list[Array], given: Any, found: Any, columns: list[list[Array]]
    ) -> Sequence[Sequence[Array]]:
        axes, to = (list(map(leaves[0].divided, forms)) for forms in (given, found))
        ys = over_devices(stage.__call__, axes, to, shared=shared)(*map(jnp.concatenate, zip(*columns, strict=True)))
        ends = np.cumsum([len(xs[0]) for xs in columns])
        parts = [jnp.split(y, ends[:-1]) for y in ys]
        return [[divided_along(y, axis) for y, axis in zip(row, to, strict=True)] for row in zip(*parts, strict=True)]

    def divide(layout: Layout, values: list[Array]) -> dict[Any, Array]:
        ys = {v: layout.of(x) if staged.form(v)[1] else x for v, x in zip(read, values, strict=True)}
        return {v: y.reshape(math.prod(layout.batch), *y.shape[len(layout.batch) :]) for v, y in ys.items()}

    read, places = zip(*((v, i) for i, v in enumerate(staged.arguments) if v in staged.read), strict=True)
    values = [[jtu.tree_leaves(row)[i] for i in places] for row in rows]
    values, _ = jax.lax.optimization_barrier((values, before))
    out, given = [], [divide(layout, xs) for layout, xs in zip(layouts, values, strict=True)]
    for layout, row, found in zip(layouts, rows, staged(given, together), strict=True):
        like = _first(row)
        arrays, others = jtu.tree_map(lambda y: y.reshape(*layout.batch, *y.shape[1:]), found)  # noqa: B023
        # Otherwise the compiler may leave the results where they were computed, and gather them later.
        out.append((jtu.tree_map(lambda y: shard_like(layout.back(y), like), arrays), others))  # noqa: B023
    return out


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


def _divided(length: int, size: int) -> tuple[int, int]:
    """The number of blocks along a side, and their length."""
    return max(-(-length // size), 1), min(length, size)
