"""The interface of arrays that a state holds in fewer bits."""

import abc
from typing import Self

from jaxtyping import Array, Inexact, UInt32

from .module import AbstractModule


class AbstractQuantized(AbstractModule):
    """An array in fewer bits, at the place of the array in a state."""

    @abc.abstractmethod
    def dequantize(self) -> Inexact[Array, "..."]:
        """Return the array that is stored."""

    @abc.abstractmethod
    def quantize(self, x: Inexact[Array, "..."], seeds: UInt32[Array, "2"] | None = None) -> Self:
        """Return another array of the same shape and dtype in the form of this one.

        Args:
            x: the array to store.
            seeds: random bits for stochastic rounding; by default, entries are rounded to the nearest value.
        """
