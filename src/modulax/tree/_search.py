"""Get and set parts of a state, or of any other tree, by name, path or pattern."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.arithmetic import rank_of
from .._support.checks import listing
from .._support.optree_nodes import entry_of
from ._names import (
    NamingError,
    Path,
    ambiguous_name,
    as_argument,
    ends_with,
    fits,
    is_pattern,
    joined,
    outermost,
    unknown_name,
)
from ._paths import key_names, leaf_paths, leaves_by_names, leaves_with_paths
from ._stacks import stack_like, unstack
from ._state import one_level

Filtering = Callable[[str, Any], bool] | None


_NO_DEFAULT: Any = object()


class _Node(NamedTuple):
    """A node of a tree: its key path, the names in it, and the classes around it, with the lengths of their paths."""

    keys: tuple[Any, ...]
    names: tuple[str, ...]
    around: tuple[tuple[str, int], ...]
    value: Any

    @property
    def path(self) -> str:
        """The dotted path."""
        return ".".join(self.names)

    @property
    def paths(self) -> list[Path]:
        """The path from the root, and those that start with a class; a dot in a key separates names too."""
        found = [self.names, *((cls, *self.names[start:]) for cls, start in self.around)]
        return [tuple(joined(names).split(".")) if "." in "".join(names) else names for names in found if names]

    def is_found_by(self, key: str, how: Callable[[Path, str], bool]) -> bool:
        """Whether one of the paths fits a name."""
        return any(how(path, key) for path in self.paths)


def _nodes(
    tree: PyTree, keys: tuple[Any, ...] = (), names: tuple[str, ...] = (), around: tuple[tuple[str, int], ...] = ()
) -> Iterator[_Node]:
    """Iterate over the tree and all nodes in it, from the root down; None is left out."""
    if tree is None:
        return
    if dataclasses.is_dataclass(tree) or hasattr(tree, "_fields"):
        around = (*around, (type(tree).__name__, len(names)))
    yield _Node(keys, names, around, tree)
    for path, child in one_level(tree)[0]:
        yield from _nodes(child, keys + path, names + key_names(path), around)


def _find(tree: PyTree, key: str, filtering: Filtering) -> list[_Node]:
    """Find the nodes with this name, path ending or pattern; of nested nodes that match a pattern, the outermost."""
    if not isinstance(key, str):
        raise ValueError(
            f"`modulax.tree`: the name must be a string, got a `{type(key).__name__}`: write `get(tree, name)`."
        )
    nodes = list(_nodes(tree))
    found = _fields_first([n for n in nodes if n.is_found_by(key, ends_with)]) or _matching(nodes, key)
    return [n for n in found if filtering is None or filtering(n.path, n.value)]


def _matching(nodes: list[_Node], key: str) -> list[_Node]:
    matching = {n.names: n for n in nodes if is_pattern(key) and n.is_found_by(key, fits)}
    return [matching[names] for names in outermost(matching)]


def _fields_first(nodes: list[_Node]) -> list[_Node]:
    """Leave out the parts of a chain that have the name of a field of their state, such as `trace`."""
    fields = [n.names for n in nodes if _is_field(n)]
    return [n for n in nodes if n.names in fields or not any(names[: len(n.names)] == n.names for names in fields)]


def _is_field(node: _Node) -> bool:
    return bool(node.keys) and isinstance(node.keys[-1], jtu.GetAttrKey)


def _filtering(path: str) -> str:
    """A predicate for a path that is also the end of another one, as it is written in an error message."""
    return f"lambda path, value: path == {path!r}"


def _unknown(call: str, key: str, tree: PyTree, filtering: Filtering) -> NamingError:
    """The error for a name that isn't in the tree, with a suggestion and the names that are: fields, then keys."""
    nodes = list(_nodes(tree))
    named = sorted((n for n in nodes if n.names and not n.names[-1].isdigit()), key=lambda n: not _is_field(n))
    among = "" if filtering is None else " that `filtering` lets through"
    classes = [cls for n in nodes for cls, _ in n.around]
    return unknown_name(call, key, [n.names[-1:] for n in named], classes, "`{}`" + among)


def get_all_with_path(tree: PyTree, key: str, filtering: Filtering = None) -> list[tuple[str, Any]]:
    """Find all values with a name in a tree, each with its dotted path; an empty list if there are none.

    A name is a field name, a key of a mapping or a class name; a dotted path or the end of one, which may start with a
    class name; or a shell-style pattern of these. If values that match a pattern are nested, only the outermost is
    returned. A value is an array, a tree or a whole state.

        tree.get_all_with_path(state, "count")
        tree.get_all_with_path(state, "ScaleByAdamState.mu")
        tree.get_all_with_path(state, "*.mu.*bias")

    Args:
        tree: a state, a transform or any other tree, including states of other libraries.
        key: the name.
        filtering: predicate on path and value: which ones to return.
    """
    return [(n.path, n.value) for n in _find(unstack(tree), key, filtering)]


def get(tree: PyTree, key: str, default: Any = _NO_DEFAULT, filtering: Filtering = None) -> Any:
    """Get the one value with a name in a tree.

        mu = tree.get(state, "mu")
        count = tree.get(state, "scale_by_adam.count")

    Args:
        tree: a state, a transform or any other tree.
        key: the name, see `get_all_with_path`.
        default: value to return if the name isn't found; without a default that is an error.
        filtering: predicate on path and value: which ones to consider.

    Raises:
        ValueError: if the name matches several values, or none and no `default` is given. The message lists the
            candidates.
    """
    tree = unstack(tree)
    found = _find(tree, key, filtering)
    if len(found) > 1:
        is_whole = key in [n.path for n in found]
        remedy = f"Choose one with `filtering={_filtering(key)}`" if is_whole else "Write one of them"
        remedy += f", or `tree.get_all_with_path(..., {key!r})` for all."
        raise ambiguous_name(f"tree.get(..., {key!r})", [n.names for n in found], remedy)
    if not found and default is _NO_DEFAULT:
        raise _unknown(f"tree.get(..., {key!r})", key, tree, filtering)
    return found[0].value if found else default


def filter(tree: PyTree, key: str, filtering: Filtering = None) -> PyTree:
    """Replace everything by None except the values with a given name.

    Combine the result with another tree by `equinox.combine`, for example to put the moments of one run into the state
    of another.

    Args:
        tree: a state, a transform or any other tree.
        key: the name, see `get_all_with_path`.
        filtering: predicate on path and value: which ones to keep.
    """
    tree = unstack(tree)
    found = [n.names for n in _find(tree, key, filtering)]
    leaves, treedef = jtu.tree_flatten_with_path(tree)
    named = [(key_names(path), leaf) for path, leaf in leaves]
    return treedef.unflatten([x if any(names[: len(n)] == n for n in found) else None for names, x in named])


def set(tree: PyTree, filtering: Filtering = None, /, **changes: Any) -> PyTree:
    """Replace values in a tree by name, and return the changed copy.

        state = tree.set(state, count=0)
        state = tree.set(state, **{"scale_by_adam.mu": moments})
        state = tree.set(state, **{"*.count": 0})

    A name must match a single value; a pattern replaces all that it matches. A new value must have the structure and
    shapes of the old one, and is cast to its dtypes, so that nothing is recompiled.

    Args:
        tree: a state, a transform or any other tree.
        filtering: predicate on path and value: which ones to replace.
        changes: the new values by name, see `get_all_with_path`.

    Raises:
        ValueError: if a name is unknown or ambiguous, or a new value differs from the old one in structure or shape, or
            needs a wider kind of dtype (a float for an integer).
    """
    if isinstance(filtering, dict):
        raise ValueError("`tree.set` takes values by name: write `tree.set(tree, **{...})`.")
    # Names are those of single parameters. `stack_like` restores the stacks at the end.
    out = unstack(tree)
    for key, value in changes.items():
        found = _find(out, key, filtering)
        call = f"tree.set(..., {key}=...)"
        if not found:
            raise _unknown(call, key, out, filtering)
        if len(found) > 1 and not is_pattern(key):
            raise _several(call, key, found)
        for node in found:
            out = with_value(out, tuple(map(entry_of, node.keys)), _like(node.value, value, node.path or key))
    return stack_like(out, tree)


def _several(call: str, key: str, found: list[_Node]) -> NamingError:
    remedy = f'Write one of them as `tree.set(..., **{{"{found[0].path}": ...}})`'
    if key in [n.path for n in found]:
        remedy = f"Choose one with `tree.set(..., {_filtering(key)}, {as_argument(key)})`"
    remedy += f', or change them all with `**{{"*.{key}": ...}}`.'
    return ambiguous_name(call, [n.names for n in found], remedy)


def _like(old: PyTree, new: PyTree, where: str) -> PyTree:
    """Return the new value in the structure and dtypes of the old one, after checking that it fits."""
    treedef = jtu.tree_structure(old)
    if jtu.tree_structure(new) == treedef:
        leaves = jtu.tree_leaves(new)
    else:
        found, wanted = leaves_by_names("tree.set", new), leaves_by_names("tree.set", old)
        if found.keys() != wanted.keys():
            raise ValueError(
                f"`tree.set`: at `{where}` there is {_contents(old)}, and the new value is {_contents(new)}. "
                f"A new value must have the structure of the old one, including the parts that stay the same."
            )
        leaves = [found[names] for names in wanted]
    named = zip(leaves_with_paths(old), leaves, strict=True)
    return treedef.unflatten([_leaf_like(x, y, f"{where}.{path}".strip(".")) for (path, x), y in named])


def _contents(tree: PyTree) -> str:
    """Describe a tree by its paths, for an error message."""
    paths = leaf_paths(tree)
    return "a single array" if paths == [""] else f"a tree with {listing(paths)}"


def _leaf_like(old: Any, new: Any, where: str) -> Any:
    """Cast a new leaf to the dtype of the old one; NumPy arrays stay NumPy arrays."""
    dtype = getattr(old, "dtype", None)
    if dtype is None:
        return new
    new = new if hasattr(new, "dtype") else np.asarray(new)
    if new.shape != old.shape:
        raise ValueError(f"`tree.set`: at `{where}` the shape is {old.shape}, and the new value's is {new.shape}.")
    if new.dtype == dtype and not isinstance(new, (np.ndarray, np.generic)):
        return new
    if rank_of(new.dtype) > rank_of(dtype):
        raise ValueError(f"`tree.set`: at `{where}` there is {dtype}, which cannot hold a value of dtype {new.dtype}.")
    if isinstance(new, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(new.shape, dtype, sharding=new.sharding)
    is_of_numpy = isinstance(old, (np.ndarray, np.generic)) and isinstance(new, (np.ndarray, np.generic))
    return new.astype(dtype) if is_of_numpy else jnp.asarray(new).astype(dtype)


def with_value(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Replace the value at a path of names, keys and indices; convert and check every Module on the way again."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    # Through the fields, since `treedef.unflatten` runs neither converters nor checks.
    if isinstance(node, eqx.Module):
        return _rebuilt(node, first, with_value(getattr(node, first), rest, value))
    children, treedef = one_level(node)
    return treedef.unflatten([with_value(x, rest, value) if entry_of(key[0]) == first else x for key, x in children])


def _rebuilt(module: Any, name: str, value: Any) -> Any:
    """Replace one field of a Module, with the conversion and checks of its constructor.

    `dataclasses.replace` would call `__init__`, which need not take the fields (that of a Chain takes its parts), and
    `equinox.tree_at` neither converts nor checks.
    """
    cls = type(module)
    new = object.__new__(cls)
    for field in dataclasses.fields(module):
        if field.name == name:
            converter = field.metadata.get("converter", lambda x: x)
            object.__setattr__(new, name, converter(value))
        else:
            object.__setattr__(new, field.name, getattr(module, field.name))
    for parent in cls.__mro__:
        if "__check_init__" in parent.__dict__:
            parent.__dict__["__check_init__"](new)
    return new
