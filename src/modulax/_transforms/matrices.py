"""Which parameters are matrices: shared by Muon and GaLore.

By default the roles of the parameters tell (`_roles`). Users may specify the axes of rows and columns instead, by
`MuonDimensionNumbers` or `GaLoreDimensionNumbers`: one for all arrays, a tree of them, a function that returns one, or
`by_path`. `matrices_as` is the converter of the fields that turns all of these into labels of leaves. `matrices_of`
applies them to a tree and returns a `Matrix` per leaf, which reshapes the leaf to batches of matrices (`pieces`, or
`of` for one batch) and back. `MatrixLabels` splits a tree into matrices and other parameters, for a `Partition`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.masks import AbstractLabels, as_labels
from .._roles.find import AbstractRoles, as_roles
from .._roles.names import looks_like_another
from .._roles.role import AbstractRole
from .._support.types import Follow, Params
from ..tree._paths import leaf_paths, named_leaves

Axes = int | Sequence[int]


@dataclasses.dataclass(frozen=True, repr=False)
class _ByAxes(AbstractLabels):
    """One specification for all arrays with exactly two axes, which is the default, or with at least two."""

    numbers: Any
    more: bool

    def __repr__(self) -> str:
        return repr(self.numbers) if self.more else "None"

    def plain(self) -> Any:
        return self.numbers if self.more else self

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        return [self.numbers if x.ndim == 2 or (self.more and x.ndim > 2) else None for x in jtu.tree_leaves(tree)]


@dataclasses.dataclass(frozen=True, repr=False)
class _Specified:
    """A function that returns a tree of specifications, each of which is treated as a leaf."""

    function: Callable[[Params], PyTree]
    kind: type

    def __call__(self, tree: Params) -> PyTree:
        return _as_leaves(self.function(tree), self.kind)

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


def _is_specification(x: Any) -> bool:
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")


def _as_leaves(tree: PyTree, kind: type) -> PyTree:
    """The tree with None replaced by False, and with specifications of optax, which are tuples, replaced by ours."""

    def leaf(x: Any) -> Any:
        if x is None:
            # `tree_map` skips None, and every leaf needs a label.
            return False
        return kind(x.reduction_axis, x.output_axis) if _is_specification(x) else x

    return jtu.tree_map(leaf, tree, is_leaf=lambda x: x is None or _is_specification(x))


def matrices_as(kind: type) -> Callable[[Any], AbstractLabels]:
    """Converter for fields called `weight_dimension_numbers`: turns any specification of matrices into labels.

    Args:
        kind: class of the specifications.
    """

    def convert(x: Any) -> AbstractLabels:
        if x is None:
            return as_roles(None)
        if isinstance(x, AbstractLabels):
            return x
        if _is_specification(x):
            return _ByAxes(_as_leaves(x, kind), more=True)
        is_function = callable(x) and jtu.all_leaves([x])
        labels = as_labels(_Specified(x, kind) if is_function else _as_leaves(x, kind))
        assert labels is not None
        return labels

    return convert


def specified_matrices(specified: AbstractLabels, follow: Follow) -> AbstractLabels:
    """Return which parameters are matrices: as specified; by default in optax, all with two axes.

    Args:
        specified: labels from `matrices_as`.
        follow: `"optax"` for its default, in which the first of two axes are rows.
    """
    is_default = isinstance(specified, AbstractRoles) and not specified.is_given
    return _ByAxes(_Numbers(), more=False) if is_default and follow == "optax" else specified


class _Numbers(NamedTuple):
    """The axes of a matrix of shape `(inputs, outputs)`."""

    reduction_axis: Axes = 0
    output_axis: Axes = 1


@dataclasses.dataclass(frozen=True)
class Matrix:
    """How an array is a matrix or a batch of matrices: its shape, and the axes of batch, rows and columns.

    Args:
        shape: the shape of the array.
        batch: the axes of the batch.
        rows: the axes of the rows, which are inputs.
        columns: the axes of the columns, which are outputs.
        blocks: the sizes of the matrices that are joined along the columns; empty if there is one.
    """

    shape: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    blocks: tuple[int, ...] = ()

    @classmethod
    def column(cls, shape: tuple[int, ...]) -> "Matrix":
        """An array as a matrix of one column."""
        return cls(shape, (), tuple(range(len(shape))), ())

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows and columns, that is inputs and outputs of a linear layer."""
        n_rows, n_columns = (math.prod(self.shape[axis] for axis in axes) for axes in (self.rows, self.columns))
        return n_rows, n_columns

    def of(self, x: Array) -> Array:
        """Reshapes the array to a batch of matrices; one with a single row, to a value for each of their columns."""
        rows, columns = (math.prod(x.shape[axis] for axis in axes) for axes in (self.rows, self.columns))
        return _arranged(x, self._order, (*(x.shape[axis] for axis in self.batch), rows, columns))

    def back(self, y: Array) -> Array:
        """The inverse of `of`: reshapes a batch of matrices to the array."""
        order, places = self._order, range(len(self.shape))
        is_whole = y.shape[-2] == self.size[0]
        shape = tuple(1 if axis in self.rows and not is_whole else n for axis, n in enumerate(self.shape))
        y = _arranged(y, tuple(range(y.ndim)), tuple(shape[axis] for axis in order))
        return _arranged(y, tuple(sorted(places, key=order.__getitem__)), shape)

    def pieces(self, x: Array) -> list[Array]:
        """Reshapes the array to batches of matrices of one shape, where several are joined along the columns."""
        joined = self.of(x)
        ends = np.cumsum([size * count for size, count in self._runs])
        parts = jnp.split(joined, ends[:-1], axis=-1)
        return [
            part if count == 1 else jnp.moveaxis(part.reshape(*part.shape[:-1], count, size), -2, 0)
            for part, (size, count) in zip(parts, self._runs, strict=True)
        ]

    @property
    def parts(self) -> list["Matrix"]:
        """How each of the `pieces` is a batch of matrices."""
        batch = tuple(self.shape[axis] for axis in self.batch)
        shapes = [((count,) if count > 1 else ()) + (*batch, self.size[0], size) for size, count in self._runs]
        return [Matrix(s, tuple(range(len(s) - 2)), (len(s) - 2,), (len(s) - 1,)) for s in shapes]

    @property
    def transposed(self) -> "Matrix":
        """The transposes of the same matrices."""
        return Matrix(self.shape, self.batch, self.columns, self.rows)

    def along_columns(self, values: np.ndarray) -> np.ndarray:
        """A value for each column, in a shape that broadcasts with the array, which is not reshaped then."""
        shape = [n if axis in self.columns else 1 for axis, n in enumerate(self.shape)]
        order = sorted(range(len(self.columns)), key=self.columns.__getitem__)
        return values.reshape([self.shape[axis] for axis in self.columns]).transpose(order).reshape(shape)

    def joined(self, pieces: Sequence[Array]) -> Array:
        """The inverse of `pieces`."""
        parts = [
            part if count == 1 else jnp.moveaxis(part, 0, -2).reshape(*part.shape[1:-1], size * count)
            for part, (size, count) in zip(pieces, self._runs, strict=True)
        ]
        return self.back(jnp.concatenate(parts, axis=-1))

    @property
    def _runs(self) -> list[tuple[int, int]]:
        """The size and the number of matrices of one size, one after the other along the columns."""
        sizes = self.blocks or self.size[1:]
        return [(size, len(list(run))) for size, run in itertools.groupby(sizes)]

    @property
    def _order(self) -> tuple[int, ...]:
        return self.batch + self.rows + self.columns


def _arranged(x: Array, order: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """An array with its axes in some order, and then in some shape, by `lax`, which is faster to trace."""
    x = x if order == tuple(range(x.ndim)) else jax.lax.transpose(x, order)
    return x if x.shape == shape else jax.lax.reshape(x, shape)


def matrices_of(
    call: str, specified: AbstractLabels, tree: PyTree, *, per_head: bool = False, hidden: bool = True
) -> list[Matrix | None]:
    """The `Matrix` of each leaf, in JAX's order; None for leaves that aren't matrices or have no elements.

    Args:
        call: what to name in error messages, such as `ScaleByMuon(weight_dimension_numbers=...)`.
        specified: labels from `specified_matrices`.
        tree: parameters or updates.
        per_head: whether each head of a query, key or value is a separate matrix.
        hidden: whether only those of hidden layers are matrices, of the arrays whose role is known.

    Raises:
        ValueError: if a specification is not one, or doesn't fit the shape of its array.
    """
    rows = zip(leaf_paths(tree), jtu.tree_leaves(tree), specified.labels(tree), strict=True)
    return [
        None
        if label is None or label is False or x.size == 0
        else _matrix(call, path, x.shape, label, per_head, hidden)
        for path, x, label in rows
    ]


def mistaken_for_matrices(specified: AbstractLabels, tree: PyTree) -> list[tuple[str, str]]:
    """Return the paths of the matrices of which nothing but the number of axes is known, and a name that denies it."""
    rows = zip(named_leaves(tree), specified.labels(tree), strict=True)
    found = [
        (".".join(names), looks_like_another(tuple(".".join(names).split("."))))  # a key may hold dots
        for (names, _), role in rows
        if isinstance(role, AbstractRole) and role.is_hidden and not role.is_known
    ]
    return [(path, name) for path, name in found if name]


def without_role(specified: AbstractLabels, tree: PyTree) -> list[str]:
    """Return the paths of the arrays that may be several matrices, and of which nothing is known."""
    leaves = named_leaves(tree)
    # Where leaves are absent, one of them may be the bias that tells.
    is_whole = len(leaves) == len(leaf_paths(tree, with_none=True))
    return [
        ".".join(names)
        for (names, x), role in zip(leaves, specified.labels(tree), strict=True)
        if isinstance(role, AbstractRole) and not (role.kind or role.is_known or role.is_vector)
        if sum(n > 1 for n in x.shape) > 2 and not looks_like_another(names)
        if is_whole or names[-1] not in ("kernel", "w")
    ]


def _matrix(
    call: str, path: str, shape: tuple[int, ...], label: Any, per_head: bool, hidden: bool = True
) -> Matrix | None:
    if not isinstance(label, AbstractRole):
        return _by_axes(call, path, shape, label)
    if (hidden and not label.is_hidden) or not label.fan_in or not label.fan_out:
        return None
    matrix = Matrix(tuple(shape), label.batch, label.fan_in, label.fan_out, label.blocks)
    try:
        return dataclasses.replace(matrix, blocks=label.by_head(matrix.size[1])) if per_head else matrix
    except ValueError as error:
        raise ValueError(f"`{call}`, at `{path}`: {error}") from error


def _by_axes(call: str, path: str, shape: tuple[int, ...], label: Any) -> Matrix:
    """The `Matrix` of an array whose rows and columns a user specified."""
    if not _is_specification(label):
        raise ValueError(f"`{call}` has {label!r} for `{path}`; expected None, or the axes of a matrix.")
    every = range(len(shape))
    rows, columns = (
        tuple(axis + len(shape) if axis < 0 else axis for axis in _tuple(axes))
        for axes in (label.reduction_axis, label.output_axis)
    )
    batch = tuple(axis for axis in every if axis not in rows + columns)
    if not rows or not columns or sorted(batch + rows + columns) != list(every):
        raise ValueError(
            f"`{call}` has {label!r} for `{path}` of shape {shape}. Rows and columns must be axes of the array, "
            f"at least one each, and no axis may occur twice. Use None for parameters that aren't matrices."
        )
    return Matrix(tuple(shape), batch, rows, columns)


def _tuple(axes: Axes) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def make_axes_hashable(numbers: Any) -> None:
    """Turn lists of axes into tuples, in the constructor of a specification."""
    for name, axes in vars(numbers).items():
        object.__setattr__(numbers, name, axes if isinstance(axes, int) else tuple(axes))


@dataclasses.dataclass(frozen=True)
class MatrixLabels(AbstractLabels):
    """Labels for a `Partition`: one for matrices, another one for all other parameters.

    Args:
        call: what to name in error messages.
        specified: labels from `matrices_as`.
        matrix: label of matrices.
        other: label of all other parameters.
    """

    call: str
    specified: AbstractLabels
    matrix: str
    other: str

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        return [self.other if m is None else self.matrix for m in matrices_of(self.call, self.specified, tree)]
