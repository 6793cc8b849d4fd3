"""Matrices that several devices share, each with a part of their longer side."""

import dataclasses
from collections.abc import Callable

import jax
from jaxtyping import Array, Shaped


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
    groups: tuple[tuple[int, ...], ...] = ()

    def sum(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The sum over the parts of a matrix."""
        return self._over(jax.lax.psum, x)

    def max(self, x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        """The maximum over the parts of a matrix."""
        return self._over(jax.lax.pmax, x)

    def _over(self, function: Callable[..., Array], x: Array) -> Array:
        return x if self.count == 1 else function(x, self.axes, axis_index_groups=self.groups)
