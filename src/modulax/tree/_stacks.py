"""States that hold arrays of several parameters as one, in the form that has an array for each parameter.

`unstack` returns that form, under the names of a state without stacks, and `stack_like` is its inverse. Whatever looks
for arrays by name or by parameter works on it.
"""

import abc
from collections.abc import Callable
from typing import Any, Self

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.module import AbstractState
from ._paths import Names


class AbstractStackedState(AbstractState):
    """A state in which some arrays are stacks: those of several parameters, at the place of the first."""

    @abc.abstractmethod
    def unstacked(self) -> Self:
        """Return this state with an array for each parameter, under the names that it has without stacks."""

    @abc.abstractmethod
    def stacked(self, single: Any) -> Self:
        """Return a state with an array for each parameter in the form of this one.

        Args:
            single: a state with the structure of `unstacked()`.
        """

    @abc.abstractmethod
    def together(self) -> list[list[Names]]:
        """Return the paths of the parameters that are in one stack, for each group of them."""


def _is_stacked(x: Any) -> bool:
    return isinstance(x, AbstractStackedState)


def stacked_states(tree: PyTree) -> list[AbstractStackedState]:
    """The states with stacks in a tree."""
    return [x for x in jtu.tree_leaves(tree, is_leaf=_is_stacked) if _is_stacked(x)]


def unstack(tree: PyTree) -> PyTree:
    """Replace every state of `Stacked` in a tree by one that has an array for each parameter.

        mu = tree.unstack(state).inner_state.inner[0].mu

    The names are those of a state without stacks. `Stacked` continues from such a state without stacks. `tree.get`,
    `tree.map_params` and `modulax.checkpoint` call this function themselves.

    Args:
        tree: a state of `Stacked`, or a tree that holds some.
    """
    return _map_stacked(lambda x: x.unstacked(), tree)


def stack_like(tree: PyTree, like: PyTree) -> PyTree:
    """Stack the arrays of a tree as they are in another one; the inverse of `unstack`.

    Args:
        tree: a tree with the structure of `unstack(like)`.
        like: a tree with states of `Stacked`.
    """
    return _map_stacked(lambda form, x: form.stacked(x), like, tree)


def _map_stacked(function: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Replace every state with stacks by a function of it; without one, return the last tree itself."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_stacked)
    if not any(map(_is_stacked, leaves)):
        return (tree, *rest)[-1]  # its class may not be made again from its leaves
    # Stops at the states with stacks, because those in `rest` may have another structure.
    columns = zip(leaves, *map(treedef.flatten_up_to, rest), strict=True)
    return treedef.unflatten([function(*xs) if _is_stacked(xs[0]) else xs[-1] for xs in columns])
