"""Arrays in fewer bits in a tree, read and written leaf by leaf."""

import collections
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from ..numerics._quantized import AbstractQuantized, quantize_together
from ._leafmap import map_leaves
from ._state import owners


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


def quantize_like(tree: PyTree, like: PyTree, words: Array | None, params: PyTree) -> PyTree:
    """Store the arrays of a tree in the form that they have in another tree; the inverse of `dequantize`.

    Args:
        tree: a state.
        like: a tree of the same structure, with quantized arrays in the place of some.
        words: raw data of a random key for stochastic rounding; None rounds to the nearest value.
        params: the parameters: the arrays of one of them are quantized together.
    """
    forms, treedef = jtu.tree_flatten(like, is_leaf=is_quantized)
    leaves = treedef.flatten_up_to(tree)
    at = [i for i, x in enumerate(forms) if is_quantized(x)]
    # Keys of JAX's generator, one for each array, would take longer to compile than all the rest.
    seeds = {} if words is None else {i: jnp.stack([words[0] + np.uint32(n), words[-1]]) for n, i in enumerate(at)}
    owned = owners(tree, params, of_same_shape=True)
    groups: dict[Any, list[int]] = collections.defaultdict(list)
    for i in at:
        form: Any = forms[i]
        layout = form.codes.shape, form.scales.shape, form.bits
        groups[("alone", i) if owned[i] is None else (owned[i], layout)].append(i)

    def column(group: list[int]) -> tuple[Any, ...]:
        return [forms[i] for i in group], [leaves[i] for i in group], [seeds[i] for i in group] if seeds else None

    found = map_leaves(lambda _, *column: quantize_together(*column), (), list(map(column, groups.values())))
    for group, new in zip(groups.values(), found, strict=True):
        for i, x in zip(group, new, strict=True):
            leaves[i] = x
    return treedef.unflatten(leaves)
