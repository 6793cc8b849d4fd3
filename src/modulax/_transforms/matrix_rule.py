"""The base class of rules that compute with whole matrices: SOAP, EShampoo, Kron, Apollo and Dion."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._protocol.counted import AbstractCounted
from .._support.types import Params, Updates
from .matrices import Matrix, matrices_of
from .spread import tree_on_auto_axes


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
