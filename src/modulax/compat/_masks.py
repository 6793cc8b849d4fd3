"""Masks as optax takes them: whatever is true, such as 1."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._protocol.masks import AbstractLabels
from ._helpers import is_function


@dataclasses.dataclass(frozen=True)
class MaskFunction:
    """A function of the parameters that returns a mask.

    Args:
        function: the function, whose mask may have other values than booleans.
    """

    function: Callable[[Any], Any]

    def __call__(self, params: Any) -> Any:
        """Return the mask, with booleans."""
        return _as_booleans(self.function(params))


def as_mask(mask: Any) -> Any:
    """A mask of booleans; other values are true or false as in Python, also those that are no trees in JAX.

    Args:
        mask: a tree, or a function that returns one.
    """
    if mask is None or isinstance(mask, AbstractLabels):
        return mask
    return MaskFunction(mask) if is_function(mask) else _as_booleans(mask)


def _as_booleans(tree: Any) -> Any:
    return jtu.tree_map(lambda x: x if isinstance(x, (bool, str, np.bool_, np.ndarray, jax.Array)) else bool(x), tree)
