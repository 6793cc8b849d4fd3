"""Low-rank projections of matrices, which GaLore and Apollo compute from the updates every few steps."""

import dataclasses
from typing import Any, ClassVar, TypeVar

import equinox as eqx
from jaxtyping import Array

from .._support.arithmetic import is_due
from ..linalg import leading_directions
from ..linalg._products import adjoint
from ..linalg._range import leading_range
from .matrixwise import AbstractMatrixwise

S = TypeVar("S", bound=Any)  # a state with projectors


class AbstractLowRank(AbstractMatrixwise[S]):
    """A rule with a projector of each matrix, whose columns are orthonormal: what GaLore and Apollo share.

    Attributes:
        rank: the largest number of columns.
        update_proj_gap: the number of steps between two computations of the projectors.
        method: `"svd"` or `"range"`.
    """

    improved: ClassVar = ("projector",)
    is_for_hidden_layers: ClassVar = True

    rank: eqx.AbstractVar[int]
    update_proj_gap: eqx.AbstractVar[Any]
    method: eqx.AbstractVar[Any]

    def projects_rows(self, shape: tuple[int, ...]) -> bool:
        """Return whether the rows of matrices of some shape are projected: if there are few, or if it is square."""
        return shape[-2] <= shape[-1]

    def projector_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the projectors of matrices of some shape."""
        *batch, rows, columns = shape
        return (*batch, rows if self.projects_rows(shape) else columns, min(self.rank, rows, columns))

    def down(self, x: Array, projector: Array) -> Array:
        """Return the projections of matrices."""
        projector = projector.astype(x.dtype)
        return adjoint(projector) @ x if self.projects_rows(x.shape) else x @ projector

    def up(self, x: Array, projector: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrices of some shape with these projections."""
        projector = projector.astype(x.dtype)
        return projector @ x if self.projects_rows(shape) else x @ adjoint(projector)

    def is_time(self, now, count):
        """Return whether this step computes the projectors."""
        del now
        return is_due(count, self.update_proj_gap)

    def improve_matrix(self, now, g, s):
        """Return the state with projectors that span the main part of the updates."""
        del now
        find = leading_range if self.method == "range" else leading_directions
        return dataclasses.replace(s, projector=find(g, s.projector.shape[-1], not self.projects_rows(g.shape)))
