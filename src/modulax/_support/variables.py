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
    nnx = sys.modules.get("flax.nnx")
    are_states = None if nnx is None else nnx.State.__instancecheck__
    return are_states is not None and any(map(are_states, jtu.tree_leaves(tree, is_leaf=are_states)))


def without_variables(tree: PyTree) -> PyTree:
    """Return a tree with the arrays of its NNX variables in their place."""
    nnx = sys.modules.get("flax.nnx")
    # A method of the type, because a Python function would be called for every node.
    are_variables = None if nnx is None else nnx.Variable.__instancecheck__
    if are_variables is None or not any(map(are_variables, jtu.tree_leaves(tree, is_leaf=are_variables))):
        return tree
    return jtu.tree_map(lambda x: x.get_value() if is_variable(x) else x, tree, is_leaf=is_variable)
