"""Modules in `flax.serialization`: the arrays of a checkpoint in nested dicts, one level for each name.

Flax calls these functions for every Module (`_support/flax_nodes.py`), at the root or anywhere in a tree of its own.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .._plugin.trees import named_leaves
from ._convert import fill
from ._names import Template, named
from ._stored import nested, plain


def to_state_dict(module: PyTree) -> dict[str, Any]:
    """Return the arrays and numbers of a Module in nested dicts; those of `Stacked` for each parameter."""
    return nested({names: plain(x) for names, x in named(module).items()})


def from_state_dict(target: PyTree, state: Any, where: str) -> PyTree:
    """Return a Module with the arrays of nested dicts, and with all else of the target.

    Args:
        target: the Module, with arrays or `jax.ShapeDtypeStruct` as leaves.
        state: what `to_state_dict` returned.
        where: the path of the target in the tree that Flax restores, for error messages.

    Raises:
        ValueError: if names, shapes or dtypes don't agree.
    """
    leaves = [(names or ("",), x) for names, x in named_leaves(state)]
    saved = {names: x if isinstance(x, jax.Array) else np.asarray(x) for names, x in leaves}
    try:
        return fill(Template(target), saved, lambda _: saved, rename=None, strict=True, lent=True)[0]
    except ValueError as error:
        raise ValueError(
            f"`flax.serialization.from_state_dict` at `{where}` (`{type(target).__name__}`): {error} "
            f'`modulax.checkpoint.load_state_dict(target, flax.traverse_util.flatten_dict(state, sep="."))` takes the '
            f"arguments `rename` and `strict`."
        ) from error
