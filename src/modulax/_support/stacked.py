"""The interface of states that hold arrays of several parameters as one."""

import abc
from typing import Any, Self

from .module import AbstractState


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
    def together(self) -> list[list[tuple[str, ...]]]:
        """Return the paths of the parameters that are in one stack, for each group of them."""
