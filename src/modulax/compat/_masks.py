"""Masks and labels as optax takes them: whatever is true, such as 1; and as they were given, for the states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._plugin.labels import AbstractLabels, as_labels
from ._helpers import is_function


class Given(AbstractLabels):
    """Labels from a tree or a function, which is kept: the states of optax depend on the prefix that was given.

    Args:
        given: the tree, or a function of the parameters that returns it.
        of_mask: whether it is a mask, in which whatever is true in Python is true.
    """

    def __init__(self, given: Any, of_mask: bool):
        self.given, self.of_mask = given, of_mask
        self._labels = as_labels(self.tree if is_function(given) else self.tree(None))

    def tree(self, params: Any) -> Any:
        """Return the tree that was given.

        Args:
            params: a tree like the parameters, for a function.
        """
        tree = self.given(params) if is_function(self.given) else self.given
        return jtu.tree_map(_as_boolean, tree) if self.of_mask else tree

    def labels(self, tree: Any, *, partial: bool = False) -> list[Any]:
        """Return the label of each leaf."""
        assert self._labels is not None
        return self._labels.labels(tree, partial=partial)

    def _key(self) -> Any:
        return (self.given if is_function(self.given) else self._labels), self.of_mask

    def __eq__(self, other: object) -> bool:
        return type(other) is Given and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return repr(self._labels)


def _as_boolean(x: Any) -> Any:
    """Convert a leaf of a mask to its truth value in Python. JAX takes a `ConfigDict` for a leaf."""
    return x if isinstance(x, (bool, str, np.bool_, np.ndarray, jax.Array)) else bool(x)


def as_mask(mask: Any) -> Any:
    """Return a mask of optax for a transform here.

    Args:
        mask: a tree, or a function that returns one.
    """
    return mask if mask is None or isinstance(mask, AbstractLabels) else Given(mask, of_mask=True)


def as_groups(labels: Any) -> Any:
    """Return labels of optax for a transform here.

    Args:
        labels: a tree, or a function that returns one.
    """
    return labels if isinstance(labels, AbstractLabels) else Given(labels, of_mask=False)


def given_for(labels: AbstractLabels, params: Any) -> Any:
    """Return the tree in which a mask or labels were given; None for patterns.

    Args:
        labels: the labels, or the negation of a mask.
        params: a tree like the parameters.
    """
    found: Any = getattr(labels, "mask", labels)
    tree: Callable[[Any], Any] | None = getattr(found, "tree", None)
    return None if tree is None else tree(params)
