"""Matrices that several devices share, each with a part of their longer side."""

import dataclasses

from jaxtyping import Array, Shaped

from .._support.groups import Groups, max_over, sum_over


@dataclasses.dataclass(frozen=True)
class Parts:
    """How devices share matrices inside `jax.shard_map`. By default, each has whole matrices.

    Args:
        count: how many devices share a matrix.
        is_tall: whether they divide its rows, and not its columns; None for whole matrices.
        axes: the axes of the mesh that the devices are on.
        groups: the devices of each matrix, by their numbers along the axes.
    """

    count: int = 1
    is_tall: bool | None = None
    axes: tuple[str, ...] = ()
    groups: Groups = ()

    def sum(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The sum over the parts of a matrix."""
        return x if self.count == 1 else sum_over(x, self.axes, self.groups)

    def max(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The maximum over the parts of a matrix, without a derivative."""
        return x if self.count == 1 else max_over(x, self.axes, self.groups)
