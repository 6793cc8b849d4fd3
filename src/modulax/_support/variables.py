"""NNX variables in the place of arrays, as in the state that the stock `flax.nnx.Optimizer` keeps."""

import sys
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree


def is_variable(x: Any) -> bool:
    """Whether this is an NNX variable."""
    # A tree can hold one only if flax was imported, so it need not be imported here.
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, nnx.Variable)


def holds_states(tree: PyTree) -> bool:
    """Whether parts of a tree became `nnx.State`, as Modules inside variables do in the stock `flax.nnx.Optimizer`."""
    return _holds(tree, "State")


def _holds(tree: PyTree, kind: str) -> bool:
    """Whether a tree holds anything of a class of NNX."""
    nnx = sys.modules.get("flax.nnx")
    # A method of the type, because a Python function would be called for every node.
    is_one = None if nnx is None else getattr(nnx, kind).__instancecheck__
    return is_one is not None and any(map(is_one, jtu.tree_leaves(tree, is_leaf=is_one)))


def without_variables(tree: PyTree) -> PyTree:
    """Return a tree with the arrays of its NNX variables in their place."""
    if not _holds(tree, "Variable"):
        return tree
    return jtu.tree_map(lambda x: x.get_value() if is_variable(x) else x, tree, is_leaf=is_variable)
