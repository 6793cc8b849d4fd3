"""Functions of trees that follow optax where `modulax.tree` does something else.

Paths are those of optax, with a `NamedTupleKey` for a field of a state, which is a NamedTuple.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import apply_updates as _apply_updates, tree as _tree
from .._plugin.arrays import rank_of
from .._plugin.states import one_level, stack_like
from .._plugin.trees import NamingError, ambiguous_name
from ..authoring import default_float
from ..numerics import at_least_float32
from ..tree import unstack


@dataclasses.dataclass(frozen=True)
class NamedTupleKey:
    """An entry of a path: the name of a class of states, and of a field of it."""

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


Path = tuple[Any, ...]
Filtering = Callable[[Path, Any], bool] | None


def apply_updates(params, updates) -> Any:
    leaves, treedef = jtu.tree_flatten(params, is_leaf=lambda x: x is None)
    updates = as_arrays(updates)
    if not any(p is None or is_number(p) for p in leaves):
        return _apply_updates(params, updates)
    steps = treedef.flatten_up_to(updates)
    # A parameter that is None stays None, whatever its update is.
    kept = [None if p is None or is_number(p) else u for p, u in zip(leaves, steps, strict=True)]
    new = treedef.flatten_up_to(_apply_updates(params, treedef.unflatten(kept)))
    pairs = zip(new, steps, strict=True)
    return treedef.unflatten([_moved(p, u) if u is not None and is_number(p) else p for p, u in pairs])


def is_number(x: Any) -> bool:
    """Whether this is a number or an array of integers, which optax trains like any array."""
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return jnp.issubdtype(x.dtype, jnp.integer)
    return type(x) in (int, float, complex)


def as_arrays(tree: Any) -> Any:
    """Return a tree with arrays of floating-point numbers, also for numbers and integers: optax trains them.

    Args:
        tree: parameters or updates.
    """
    leaves, treedef = jtu.tree_flatten(tree)
    if all(isinstance(x, jax.Array) and _is_inexact(x.dtype) for x in leaves):
        return tree
    return treedef.unflatten(map(_as_array, leaves))


@functools.cache  # asked for every leaf of every call
def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _as_array(x: Any) -> Any:
    if is_number(x):
        return jnp.asarray(x) if type(x) is complex else jnp.asarray(x, default_float())
    if isinstance(x, (np.ndarray, np.generic)):
        return x if x.dtype == jax.dtypes.float0 else jnp.asarray(x)
    # A leaf of the caller's own, around an array. The variables of NNX that are leaves have no `value`.
    value = x.get_value() if hasattr(x, "get_value") else getattr(x, "value", None)
    return value if isinstance(value, jax.Array) and hasattr(x, "dtype") else x


def _moved(p: Any, u: Any) -> jax.Array:
    """A number plus its update, in its own dtype."""
    dtype = jnp.result_type(p)
    return (jnp.asarray(p, u.dtype if jnp.issubdtype(dtype, jnp.integer) else dtype) + u).astype(dtype)


def tree_get_all_with_path(tree, key, filtering=None) -> list[tuple[Path, Any]]:
    return [(path, x) for path, x in _found(unstack(tree), key, ()) if filtering is None or filtering(path, x)]


def tree_get(tree, key, default=None, filtering=None) -> Any:
    found = tree_get_all_with_path(tree, key, filtering)
    if len(found) > 1:
        raise ambiguous_name(f"tree_get(..., {key!r})", [path for path, _ in found], "Choose one with `filtering=...`.")
    return found[0][1] if found else default


def tree_set(tree, filtering=None, /, **kwargs) -> Any:
    single = unstack(tree)
    for key in kwargs:
        if not tree_get_all_with_path(single, key, filtering):
            among = " that `filtering` lets through" * (filtering is not None)
            raise NamingError(f"`tree_set(..., {key}=...)`: there is no `{key}`{among}.")
    return stack_like(_replaced(single, (), kwargs, filtering), tree)


def tree_max(tree) -> Any:
    return _extremum(jnp.max, jnp.maximum, -jnp.inf, tree) if _is_complex(tree) else _tree.max(tree)


def tree_min(tree) -> Any:
    return _extremum(jnp.min, jnp.minimum, jnp.inf, tree) if _is_complex(tree) else _tree.min(tree)


def tree_div(tree_x, tree_y) -> Any:
    # The quotient of NumPy's arrays is one of NumPy's, in their own precision.
    is_of_numpy = all(isinstance(x, (np.ndarray, np.generic)) for x in jtu.tree_leaves((tree_x, tree_y)))
    return jtu.tree_map(operator.truediv, tree_x, tree_y) if is_of_numpy else _tree.div(tree_x, tree_y)


def tree_vdot(tree_x, tree_y) -> Any:
    return _tree.sum(jtu.tree_map(_vdot, tree_x, tree_y))  # rounded as in optax


# Names that optax answers with a warning: what to write instead, and the function.
OLD_TREES: dict[str, tuple[str, Callable[..., Any]]] = {
    "tree_add_scalar_mul": ("tree_add_scale", _tree.add_scale),
    "tree_l1_norm": ("tree_norm(..., ord=1)", functools.partial(_tree.norm, ord=1)),
    "tree_l2_norm": ("tree_norm", functools.partial(_tree.norm, ord=2)),
    "tree_linf_norm": ("tree_norm(..., ord='inf')", functools.partial(_tree.norm, ord="inf")),
    "tree_scalar_mul": ("tree_scale", _tree.scale),
}


def _vdot(x: Any, y: Any) -> jax.Array:
    dtype = jnp.result_type(x, y)
    dtype = at_least_float32(dtype) if jnp.issubdtype(dtype, jnp.inexact) else dtype
    return jnp.vdot(x, y, precision=jax.lax.Precision.HIGHEST, preferred_element_type=dtype)


def _is_complex(tree: Any) -> bool:
    return any(map(jnp.iscomplexobj, jtu.tree_leaves(tree)))


def _extremum(of_one: Any, of_two: Any, of_none: float, tree: Any) -> Any:
    """The largest or the smallest entry in NumPy's order of complex numbers."""
    return functools.reduce(of_two, [of_one(x) for x in jtu.tree_leaves(tree) if jnp.size(x)], of_none)


def _opened(node: Any) -> tuple[list[tuple[Any, Any]], Callable[[Sequence[Any]], Any]]:
    """The children of a node with their keys in optax, and a function that makes such a node of other children."""
    children, treedef = one_level(node)
    if not children:
        return [], lambda _: node
    is_tuple = hasattr(node, "_fields")
    keys = [NamedTupleKey(type(node).__name__, path[0].name) if is_tuple else path[0] for path, _ in children]
    return list(zip(keys, [x for _, x in children], strict=True)), treedef.unflatten


def _found(node: Any, key: Any, path: Path) -> list[tuple[Path, Any]]:
    """The values with a name and their paths: those of a node before those further down."""
    entries, _ = _opened(node)
    found = [(path, node)] if key == _class_name(node) else []
    found += [((*path, entry), x) for entry, x in entries if _name(entry) == key]
    return found + [pair for entry, x in entries for pair in _found(x, key, (*path, entry))]


def _replaced(node: Any, path: Path, changes: Mapping[Any, Any], filtering: Filtering) -> Any:
    def is_changed(path: Path, name: Any, x: Any) -> bool:
        return name in changes and (filtering is None or filtering(path, x))

    if is_changed(path, _class_name(node), node):
        return changes[_class_name(node)]
    entries, rebuilt = _opened(node)
    new = []
    for entry, x in entries:
        below, name = (*path, entry), _name(entry)
        if is_changed(below, name, x):
            new.append(_like(name, x, changes[name]))
        else:
            new.append(_replaced(x, below, changes, filtering))
    return rebuilt(new)


def _class_name(node: Any) -> str | None:
    """What the class of a state is called."""
    return type(node).__name__ if hasattr(node, "_fields") else None


def _name(entry: Any) -> Any:
    return entry.key if isinstance(entry, jtu.DictKey) else getattr(entry, "name", None)


def _like(name: Any, old: Any, new: Any) -> Any:
    """A number in the dtype of the one that it replaces, so that nothing is compiled again."""
    is_number = isinstance(new, (bool, int, float, complex, np.ndarray, np.generic, jax.Array))
    if not is_number or not isinstance(old, (jax.Array, np.ndarray)) or jnp.issubdtype(old.dtype, jax.dtypes.extended):
        return new
    is_whole = isinstance(new, float) and new.is_integer()
    if rank_of(jnp.result_type(new)) > rank_of(old.dtype) and not is_whole:
        raise ValueError(f"`tree_set({name}=...)`: it is {old.dtype}, which cannot hold {jnp.result_type(new)}.")
    return jnp.asarray(new).astype(old.dtype)
