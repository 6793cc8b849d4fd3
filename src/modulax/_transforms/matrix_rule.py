"""The base class of rules that compute with whole matrices and are not `AbstractMatrixwise`: Kron, Apollo and Dion."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._protocol.counted import AbstractCounted
from .._support.types import Params, Updates
from ..tree._align import align
from .matrices import Matrix, matrices_of
from .spread import tree_on_auto_axes

Rebuild = Callable[[list[Any]], PyTree]


class AbstractMatrixRule(AbstractCounted):
    """A rule on the matrices of a tree, which also computes the updates of all other leaves.

    A subclass implements `init`, and `_direction` on trees whose arrays have no explicit axes of a mesh.
    """

    weight_dimension_numbers: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def _direction(self, updates: Updates, state: Any) -> tuple[Updates, Any]:
        """Return the new updates and the new state.

        Args:
            updates: the updates.
            state: the state.
        """

    def update(self, updates: Updates, state: Any, params: Params | None = None, **extra: Any) -> tuple[Updates, Any]:
        """Return the direction, and the new state."""
        del params, extra
        return tree_on_auto_axes(lambda now, tree: now._direction(*tree), self, (updates, state))

    def _matrices(self, tree: PyTree, *, hidden: bool = False) -> list[Matrix | None]:
        """Return the `Matrix` of each leaf, in JAX's order; None for leaves that aren't matrices.

        Args:
            tree: parameters or updates.
            hidden: whether only those of hidden layers are matrices, of the arrays whose role is known.
        """
        call = f"{type(self).__name__}(weight_dimension_numbers=...)"
        return matrices_of(call, self.weight_dimension_numbers, tree, hidden=hidden)


def by_leaf(kind: Any, state: Any, like: PyTree, owner: str) -> tuple[list[Any], list[Rebuild]]:
    """Return the fields of a state for each leaf, and the functions that put them back into trees.

    Args:
        kind: the class of what a leaf has, a NamedTuple with the names of these fields.
        state: the state.
        like: the updates, whose leaves give the order.
        owner: the call to name in error messages.
    """
    columns = [align(getattr(state, name), like, owner) for name in kind._fields]
    leaves = [kind(*row) for row in zip(*(values for values, _ in columns), strict=True)]
    return leaves, [rebuild for _, rebuild in columns]


def by_field(leaves: Sequence[tuple[Any, ...]], rebuild: Sequence[Rebuild]) -> list[PyTree]:
    """Return the trees of all fields, from those of each leaf: the inverse of `by_leaf`."""
    columns = zip(*leaves, strict=True) if leaves else [()] * len(rebuild)
    return [make(list(values)) for make, values in zip(rebuild, columns, strict=True)]
