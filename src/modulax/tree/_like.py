"""Create trees like another one: constants, random values, other dtypes, batch axes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, PyTree

from .._support.arithmetic import common_dtype, default_float, dtype_for
from .._support.checks import listing
from .._support.keys import is_typed_key
from ._leaves import columns, leaves_of, map_arrays
from ._paths import leaf_paths


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Create a tree of zeros of the same shapes, and of the same dtypes unless one is given.

    Args:
        tree: a tree of arrays, or of anything with a shape and a dtype, such as the result of `jax.eval_shape`.
        dtype: dtype of all leaves; by default each keeps its own.

    Raises:
        ValueError: if a leaf is not an array.
    """
    return full_like(tree, 0, dtype)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Create a tree of ones of the same shapes, and of the same dtypes unless one is given.

    Args:
        tree: a tree of arrays, or of anything with a shape and a dtype.
        dtype: dtype of all leaves; by default each keeps its own.

    Raises:
        ValueError: if a leaf is not an array.
    """
    return full_like(tree, 1, dtype)


def full_like(tree: PyTree, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> PyTree:
    """Create a tree filled with one value, of the same shapes, and of the same dtypes unless one is given.

    Args:
        tree: a tree of arrays, or of anything with a shape and a dtype.
        fill_value: the value.
        dtype: dtype of all leaves; by default each keeps its own.

    Raises:
        ValueError: if a leaf is not an array.
    """
    # The dtype is given, because `full_like` keeps the weak type of its argument otherwise.
    return map_arrays(lambda x: jnp.full_like(x, fill_value, dtype or x.dtype), "tree.full_like", tree)


def split_key_like(rng_key: Array, target_tree: PyTree) -> PyTree:
    """Split a random key into one key per leaf.

    Args:
        rng_key: the key to split.
        target_tree: the tree whose structure the result has.
    """
    treedef = jtu.tree_structure(target_tree)
    return treedef.unflatten(list(jax.random.split(rng_key, treedef.num_leaves)))


def random_like(
    rng_key: Array,
    target_tree: PyTree,
    sampler: Callable[..., Array] = jax.random.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Create a tree of random arrays of the same shapes, each sampled with its own key.

        noise = tree.random_like(key, params)
        signs = tree.random_like(key, params, jax.random.rademacher)

    Args:
        rng_key: the key to split into one key per leaf.
        target_tree: a tree of arrays, or of anything with a shape and a dtype.
        sampler: a function of a key, a shape and a dtype, such as those of `jax.random`. If it has an argument
            `out_sharding`, it is called with the sharding of the array.
        dtype: dtype passed to the sampler; by default that of each array.

    Raises:
        ValueError: if a leaf is not an array.
    """
    leaves, treedef = leaves_of("tree.random_like", "target_tree", target_tree)
    keys = jtu.tree_leaves(split_key_like(rng_key, target_tree))
    is_placed = "out_sharding" in inspect.signature(sampler).parameters

    def sample(key: Array, x: Array) -> Array:
        # On explicit mesh axes, the sharding is part of the type, and random arrays would have another one.
        where = {"out_sharding": jax.typeof(x).sharding} if is_placed else {}
        return sampler(key, x.shape, dtype or x.dtype, **where)

    return treedef.unflatten([sample(key, x) for key, x in zip(keys, leaves, strict=True)])


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Add leading batch axes to every array, by repeating it.

    Args:
        tree: a tree of arrays.
        shape: lengths of the new axes.

    Raises:
        ValueError: if a leaf is not an array.
    """
    return map_arrays(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), "tree.batch_shape", tree)


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Cast every array to a dtype; complex arrays stay complex, so that no imaginary part is lost.

    Args:
        tree: a tree of arrays.
        dtype: the dtype; None returns the tree unchanged.

    Raises:
        ValueError: if a leaf is not an array.
    """
    if dtype is None:
        return tree
    return map_arrays(lambda x: x.astype(dtype_for(x, dtype)), "tree.cast", tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Cast every array to the dtype that another tree has at its path.

    Args:
        tree: a tree of arrays.
        other_tree: a tree with leaves at the same paths.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or a leaf is not an array.
    """
    (leaves, others), treedef = columns("tree.cast_like", tree=tree, other_tree=other_tree)
    return treedef.unflatten([x.astype(y.dtype) for x, y in zip(leaves, others, strict=True)])


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> np.dtype:
    """Return the dtype of the leaves of a tree.

    Args:
        tree: a tree of arrays; an empty tree has JAX's default float dtype.
        mixed_dtype_handler: what to do if the dtypes differ: `"promote"` returns the dtype that all of them promote to;
            `"highest"` and `"lowest"` return the widest and the narrowest one, and require that the dtypes can be
            ordered; None is an error.

    Raises:
        ValueError: if the dtypes differ and no handler is given, if they can't be ordered, or if the handler is
            unknown.
    """
    leaves, _ = leaves_of("tree.dtype", "tree", tree)
    dtypes = list(dict.fromkeys(jnp.dtype(x.dtype) for x in leaves)) or [default_float()]
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ValueError(
            "`tree.dtype(mixed_dtype_handler=...)` must be None, `'promote'`, `'highest'` or `'lowest'`, got "
            f"{mixed_dtype_handler!r}."
        )
    if len(dtypes) == 1:
        return dtypes[0]
    if mixed_dtype_handler is None:
        of = dict(zip(leaf_paths(tree), (x.dtype for x in leaves), strict=True))
        raise ValueError(
            f"`tree.dtype`: the leaves have several dtypes, {listing(f'{path}: {of[path]}' for path in of)}. "
            f"Choose one with `mixed_dtype_handler`."
        )
    if mixed_dtype_handler == "promote":
        return common_dtype(*dtypes)
    return functools.reduce(functools.partial(_chosen, mixed_dtype_handler), dtypes)


def _chosen(which: str, x: np.dtype, y: np.dtype) -> np.dtype:
    """Return the wider or the narrower of two dtypes.

    Raises:
        ValueError: if neither can hold the other.
    """
    wide = common_dtype(x, y)
    if wide not in (x, y):
        raise ValueError(
            f"`tree.dtype(mixed_dtype_handler={which!r})`: neither {x} nor {y} holds the other; `'promote'` would "
            f"return {wide}."
        )
    narrow = y if wide == x else x
    return wide if which == "highest" else narrow


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """Replace random keys by their raw data, arrays of integers, for example to compare or store them.

    Args:
        input_tree: a tree of arrays and random keys.
    """

    def data(x: Any) -> Any:
        return jax.random.key_data(x) if is_typed_key(x) else x

    return jtu.tree_map(data, input_tree)
