"""Arrays in fewer bits in a tree, read and written leaf by leaf."""

from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from ..numerics._quantized import AbstractQuantized
from ._leafmap import map_leaves


def is_quantized(x: Any) -> bool:
    """Whether this is an array in fewer bits, at the place of the array."""
    return isinstance(x, AbstractQuantized)


def dequantize(tree: PyTree) -> PyTree:
    """Replace every quantized array in a tree by the array that it stores.

        mu = tree.get(tree.dequantize(state), "mu")

    The state of `LowBit(inner)` becomes one with the state of `inner` as `inner_state`, which `inner` continues.

    Args:
        tree: a state of `LowBit`, or a tree that holds some.
    """
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_quantized)
    at = [i for i, x in enumerate(leaves) if is_quantized(x)]
    for i, x in zip(at, map_leaves(lambda _, q: q.dequantize(), (), [(leaves[i],) for i in at]), strict=True):
        leaves[i] = x
    return treedef.unflatten(leaves)
