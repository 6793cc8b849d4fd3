"""Trees that belong together: the leaves of one in the order of another, and a sentence where they do not fit."""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.checks import listing
from ._paths import leaf_paths, leaves_with_paths, longest_prefix


def align(
    tree: PyTree, like: PyTree, owner: str, whose: str = "the parameters that `init` was given"
) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """What `tree` holds at each leaf of `like`, and the function that puts new values back in `tree`'s own structure.

    Equal structures are paired as they are. Others are paired by path, so that containers of another type and modules
    of other static metadata still fit.

    Args:
        tree: the tree to take apart, which has the right leaves.
        like: the updates, whose leaves give the order.
        owner: the call that is at fault if they do not fit.
        whose: what `tree` is, for the error.
    """
    treedef = jtu.tree_structure(like)
    try:
        return treedef.flatten_up_to(tree), treedef.unflatten
    except ValueError:
        pass
    found = leaves_with_paths(tree, with_none=True)
    paths = leaf_paths(like)
    held: dict[str, list[tuple[int, Any, bool]]] = {path: [] for path in paths}
    lacking = []
    for i, (path, leaf) in enumerate(found):
        owner_path = longest_prefix(path, held)
        if owner_path is not None:
            held[owner_path].append((i, leaf, owner_path == path))
        elif leaf is not None:
            lacking.append(path)
    unknown = [path for path in paths if not held[path]]
    if lacking or unknown:
        raise ValueError(misfit(owner, whose, lacking, unknown))
    own_treedef = jtu.tree_structure(tree, is_leaf=lambda x: x is None)

    def value(path: str) -> Any:
        """What stands at a path: an array, None, or several arrays below it as a list."""
        return held[path][0][1] if held[path][0][2] else [leaf for _, leaf, _ in held[path]]

    def rebuild(values: list[Any]) -> PyTree:
        leaves: list[Any] = [None] * len(found)
        for path, new in zip(paths, values, strict=True):
            parts = [new] if held[path][0][2] else new
            for (i, _, _), part in zip(held[path], parts, strict=True):
                leaves[i] = part
        return own_treedef.unflatten(leaves)

    return [value(path) for path in paths], rebuild


def misfit(owner: str, whose: str, lacking: list[str], unknown: list[str]) -> str:
    """The sentence on updates that have other leaves than they must."""
    parts = [f"lack {listing(lacking)}"] * bool(lacking) + [f"have an unknown {listing(unknown)}"] * bool(unknown)
    return f"`{owner}`: the updates must have the leaves of {whose}; they {' and '.join(parts)}."


def paired(params: PyTree, updates: PyTree, owner: str, *, per_example: tuple[int, ...] = ()) -> PyTree:
    """The parameters in the structure of the updates, refused unless both have the same paths and shapes.

    Args:
        params: the parameters.
        updates: the updates.
        owner: the call that is at fault if they do not fit.
        per_example: the axes of examples, which the updates have more than the parameters, equally long everywhere.
    """
    values, _ = align(params, updates, owner, "the parameters")
    if per_example:
        check_examples(updates, values, owner, per_example)
    else:
        check_same_shapes(updates, values, owner)
    return jtu.tree_structure(updates).unflatten(values)


def check_same_shapes(updates: PyTree, values: list[Any], owner: str) -> None:
    """Refuses updates of other shapes than the parameters, or than what is like them."""
    for (path, u), value in zip(leaves_with_paths(updates), values, strict=True):
        shape = getattr(value, "shape", None)
        if shape != u.shape:
            raise ValueError(
                f"`{owner}`: at `{path}` the update has shape {u.shape} and the parameter {shape}. "
                "They must be equal; nothing is broadcast."
            )


def check_examples(updates: PyTree, values: list[Any], owner: str, axes: tuple[int, ...] = (0,)) -> None:
    """Refuses updates that have not the parameters' shapes beside the axes of examples, of one length for all."""
    lengths = None
    for (path, u), value in zip(leaves_with_paths(updates), values, strict=True):
        at = [axis % u.ndim for axis in axes if -u.ndim <= axis < u.ndim]
        rest = tuple(length for i, length in enumerate(u.shape) if i not in at)
        found = [u.shape[i] for i in at]
        lengths = found if lengths is None else lengths
        if rest != value.shape or found != lengths or len(at) != len(axes):
            needed = ", ".join(map(str, ("n", *value.shape)))
            if axes != (0,):
                raise ValueError(
                    f"`{owner}` needs the updates of each example by itself, on axes {axes}: at `{path}` the update "
                    f"has shape {u.shape} and the parameter {value.shape}. Without these axes the shapes must be "
                    f"equal, and along them all updates equally long."
                )
            raise ValueError(
                f"`{owner}` needs the updates of each example by itself, on a leading axis: at `{path}` the update has "
                f"shape {u.shape} and the parameter {value.shape}; needed is ({needed}), with one n for all. "
                f"`jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, examples)` returns such updates."
            )
