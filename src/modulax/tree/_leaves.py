"""Leaves of trees as arrays, matched by path across several trees, with errors that name the path."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._support.arithmetic import is_numeric_array
from .._support.checks import listing
from ._paths import leaf_paths, leaves_by_names

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


def arrays_of(model: PyTree) -> list[Any]:
    """The arrays of a model."""
    return [x for x in jtu.tree_leaves(model) if is_numeric_array(x)]


def with_arrays(model: PyTree, arrays: Sequence[Any]) -> PyTree:
    """Replace the arrays of a model; its other leaves stay."""
    leaves, treedef = jtu.tree_flatten(model)
    if len(leaves) == len(arrays):
        return treedef.unflatten(arrays)
    remaining = iter(arrays)
    return treedef.unflatten([next(remaining) if is_numeric_array(x) else x for x in leaves])


def leaves_of(owner: str, name: str, tree: PyTree) -> tuple[list[Any], Any]:
    """Return the leaves of a tree as arrays, and its structure.

    Raises:
        ValueError: if a leaf is not an array or a number.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    return _as_arrays(owner, name, tree, leaves), treedef


def map_arrays(function: Callable[[Any], Any], owner: str, tree: PyTree) -> PyTree:
    """Apply a function to every leaf of the argument `tree`, as an array.

    Raises:
        ValueError: if a leaf is not an array or a number.
    """
    leaves, treedef = leaves_of(owner, "tree", tree)
    return treedef.unflatten(map(function, leaves))


def columns(owner: str, **trees: PyTree) -> tuple[list[list[Array]], Any]:
    """Return the leaves of each tree in the order of the first one, and the structure of the first.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or a leaf is not an array or a number.
    """
    (first, like), *others = trees.items()
    leaves, treedef = leaves_of(owner, first, like)
    out = [leaves]
    for name, tree in others:
        leaves, other = jtu.tree_flatten(tree)
        if other != treedef:
            leaves = _by_path(owner, first, like, name, tree)
        out.append(_as_arrays(owner, name, like, leaves))  # now in the order of the first tree
    return out, treedef


def check_shapes(owner: str, tree: PyTree, xs: Sequence[Any], ys: Sequence[Any]) -> None:
    """Check that two lists of leaves have the same shapes; the first are the leaves of `tree`.

    Raises:
        ValueError: if they don't; the message names the path.
    """
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x.shape != y.shape:
            path = leaf_paths(tree)[i]
            raise ValueError(f"`{owner}`: at `{path}` the shapes are {x.shape} and {y.shape}. They must be equal.")


def _by_path(owner: str, first: str, like: PyTree, name: str, tree: PyTree) -> list[Any]:
    """Reorder the leaves of a tree with other containers or metadata to match the first tree by path."""
    found, wanted = leaves_by_names(owner, tree), leaves_by_names(owner, like)
    lacking = [".".join(n) for n in wanted if n not in found]
    unknown = [".".join(n) for n in found if n not in wanted]
    if lacking or unknown:
        parts = [f"lacks {listing(lacking)}"] * bool(lacking) + [f"has an unknown {listing(unknown)}"] * bool(unknown)
        raise ValueError(f"`{owner}`: `{name}` must have the leaves of `{first}`; it {' and '.join(parts)}.")
    return [found[n] for n in wanted]


def _as_arrays(owner: str, name: str, tree: PyTree, leaves: Sequence[Any]) -> list[Any]:
    """Convert the leaves to arrays."""
    return [x if isinstance(x, jax.Array) else _array(owner, name, tree, i, x) for i, x in enumerate(leaves)]


def _array(owner: str, name: str, tree: PyTree, i: int, x: Any) -> Any:
    """Convert one leaf to an array; the structs of `jax.eval_shape` are kept."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    if isinstance(x, _NUMBERS):
        return jnp.asarray(x)
    raise ValueError(
        f"`{owner}`: `{name}` must be a tree of arrays, but at `{leaf_paths(tree)[i]}` there is {x!r}. "
        f"`equinox.filter({name}, equinox.is_array)` keeps the arrays only."
    )
