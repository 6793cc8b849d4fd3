"""Trees that belong together: the leaves of one in the order of another, and a sentence where they do not fit."""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._checks import listing
from ._paths import leaf_paths, leaves_with_paths


def align(tree: PyTree, like: PyTree, describe: Callable[[], str]) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """What `tree` holds at each leaf of `like`, and the function that puts new values back in `tree`'s own structure.

    Equal structures are paired as they are. Others are paired by path, so that containers of another type and modules
    of other static metadata still fit.

    Args:
        tree: the tree to take apart.
        like: the tree whose leaves give the order.
        describe: the beginning of the error's sentence.
    """
    treedef = jtu.tree_structure(like)
    try:
        return treedef.flatten_up_to(tree), treedef.unflatten
    except ValueError:
        pass
    found = leaves_with_paths(tree)
    by_path = dict(found)
    paths = leaf_paths(like)
    if set(paths) != set(by_path):
        raise ValueError(describe() + " " + difference(leaf_paths(tree), paths))
    own_treedef = jtu.tree_structure(tree)
    order = {path: i for i, path in enumerate(paths)}

    def rebuild(values: list[Any]) -> PyTree:
        return own_treedef.unflatten([values[order[path]] for path, _ in found])

    return [by_path[path] for path in paths], rebuild


def difference(got: list[str], needed: list[str]) -> str:
    """A sentence on what is missing in one list of paths, and what is too much."""
    missing = [path for path in needed if path not in got]
    extra = [path for path in got if path not in needed]
    parts = []
    if missing:
        parts.append(f"There is nothing at {listing(missing)}.")
    if extra:
        parts.append(f"There is something unknown at {listing(extra)}.")
    return " ".join(parts)


def paired(params: PyTree, updates: PyTree, name: str) -> PyTree:
    """The parameters in the structure of the updates, refused unless both have the same paths and shapes."""
    values, _ = align(params, updates, lambda: f"`{name}.update`: the parameters are another tree than the updates.")
    for (path, u), p in zip(leaves_with_paths(updates), values, strict=True):
        shape = getattr(p, "shape", None)
        if shape != u.shape:
            raise ValueError(
                f"`{name}.update`: at `{path}` the update has shape {u.shape} and the parameter {shape}. "
                "They must be equal; nothing is broadcast."
            )
    return jtu.tree_structure(updates).unflatten(values)
