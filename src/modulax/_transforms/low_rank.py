"""Low-rank projections of matrices, which GaLore and Apollo compute every few steps.

`Side` says which side of a matrix is projected, and has the projector. `directions` computes projectors from the
current updates, by singular vectors or by matrix products alone.
"""

from typing import Any, NamedTuple

from jaxtyping import Array

from .._support.arithmetic import at_least_float32
from ..linalg import leading_directions
from ..linalg._products import adjoint
from ..linalg._range import leading_range
from .matrices import Matrix


class Side(NamedTuple):
    """A matrix, which of its sides is projected, and the projector."""

    matrix: Matrix
    is_rows: bool
    projector: Any = None

    def shape(self, rank: int) -> tuple[int, ...]:
        """The shape of the projector."""
        rows, columns = self.matrix.size
        batch = [self.matrix.shape[axis] for axis in self.matrix.batch]
        return (*batch, rows if self.is_rows else columns, min(rank, rows, columns))

    def check(self, owner: str, x: Array, projector: Array, rank: int) -> None:
        """Raises an error if an update doesn't fit its projector.

        Args:
            owner: the call to name.
            x: the update.
            projector: the projector.
            rank: the rank of the projection.
        """
        if projector.shape != self.shape(rank):
            raise ValueError(
                f"`{owner}`: an update of shape {x.shape} doesn't fit its projector of shape {projector.shape}. "
                f"Updates must have the shapes of the parameters that `init` was called with."
            )

    def down(self, x: Array) -> Array:
        """Projects an array of the original shape, in at least float32."""
        x = self.matrix.of(wide(x, self.projector))
        projector = self.projector.astype(x.dtype)
        return adjoint(projector) @ x if self.is_rows else x @ projector

    def up(self, x: Array) -> Array:
        """Maps a projected matrix back to the original shape of its array, in at least float32."""
        x = wide(x, self.projector)
        projector = self.projector.astype(x.dtype)
        return self.matrix.back(projector @ x if self.is_rows else x @ adjoint(projector))

    def moved(self, x: Array, start: Array) -> Array:
        """The array, moved from where it is along the directions that the projection keeps."""
        x = wide(x, start)  # inside a survey, x is in JAX's default float dtype
        step = x - self.down(start).astype(start.dtype).astype(x.dtype)
        return (start.astype(x.dtype) + self.up(step)).astype(start.dtype)


def wide(x: Array, *others: Array) -> Array:
    return x.astype(at_least_float32(x.dtype, *(y.dtype for y in others)))


def directions(x: Array, rank: int, of_rows: bool, method: str) -> Array:
    """Return projectors with orthonormal columns, which span the main part of matrices.

    Args:
        x: the matrices.
        rank: the number of columns.
        of_rows: whether the rows are projected.
        method: `"svd"` or `"range"`.
    """
    return (leading_range if method == "range" else leading_directions)(x, rank, not of_rows)
