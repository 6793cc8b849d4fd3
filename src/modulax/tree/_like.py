"""Trees like another one: of given numbers, of random ones, of other dtypes, with axes of a batch."""

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
from ._leaves import columns, leaves_of
from ._paths import leaf_paths


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros of the same shapes, and of the same dtypes unless another is given.

    Args:
        tree: a tree of arrays, or of what has a shape and a dtype, such as `jax.eval_shape` returns.
        dtype: that of all leaves; by default each has that of its array.
    """
    return full_like(tree, 0, dtype)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Ones of the same shapes, and of the same dtypes unless another is given.

    Args:
        tree: a tree of arrays, or of what has a shape and a dtype.
        dtype: that of all leaves; by default each has that of its array.
    """
    return full_like(tree, 1, dtype)


def full_like(tree: PyTree, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> PyTree:
    """One number everywhere, in arrays of the same shapes, and of the same dtypes unless another is given.

    Args:
        tree: a tree of arrays, or of what has a shape and a dtype.
        fill_value: the number.
        dtype: that of all leaves; by default each has that of its array.
    """
    leaves, treedef = leaves_of("tree.full_like", "tree", tree)
    return treedef.unflatten([jnp.full_like(x, fill_value, dtype or x.dtype) for x in leaves])


def split_key_like(rng_key: Array, target_tree: PyTree) -> PyTree:
    """A random key for every leaf.

    Args:
        rng_key: the key that they are split from.
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
    """Random arrays of the same shapes, each from a key of its own.

        noise = tree.random_like(key, params)
        signs = tree.random_like(key, params, jax.random.rademacher)

    Args:
        rng_key: the key that those of the leaves are split from.
        target_tree: a tree of arrays, or of what has a shape and a dtype.
        sampler: a function of a key, a shape and a dtype, such as those of `jax.random`. If it takes `out_sharding`, it
            is given that of the array.
        dtype: what the sampler is given as dtype; by default that of each array.
    """
    leaves, treedef = leaves_of("tree.random_like", "target_tree", target_tree)
    keys = jtu.tree_leaves(split_key_like(rng_key, target_tree))
    is_placed = "out_sharding" in inspect.signature(sampler).parameters

    def sample(key: Array, x: Array) -> Array:
        where = {"out_sharding": jax.typeof(x).sharding} if is_placed else {}
        return sampler(key, x.shape, dtype or x.dtype, **where)

    return treedef.unflatten([sample(key, x) for key, x in zip(keys, leaves, strict=True)])


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Every array repeated along new leading axes.

    Args:
        tree: a tree of arrays.
        shape: the lengths of the new axes.
    """
    leaves, treedef = leaves_of("tree.batch_shape", "tree", tree)
    return treedef.unflatten([jnp.broadcast_to(x, (*shape, *x.shape)) for x in leaves])


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Every array in one dtype. A complex array stays complex: its imaginary part is not lost.

    Args:
        tree: a tree of arrays.
        dtype: the dtype; None leaves the tree as it is.
    """
    if dtype is None:
        return tree
    leaves, treedef = leaves_of("tree.cast", "tree", tree)
    return treedef.unflatten([x.astype(dtype_for(x, dtype)) for x in leaves])


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Every array in the dtype that another tree has at its path.

    Args:
        tree: a tree of arrays.
        other_tree: a tree with leaves at the same paths.
    """
    (leaves, others), treedef = columns("tree.cast_like", tree=tree, other_tree=other_tree)
    return treedef.unflatten([x.astype(y.dtype) for x, y in zip(leaves, others, strict=True)])


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> np.dtype:
    """The dtype of all leaves.

    Args:
        tree: a tree of arrays; without any, its dtype is JAX's default for floats.
        mixed_dtype_handler: what to do if they have several: `"promote"` returns the one that holds them all,
            `"highest"` and `"lowest"` return the widest and the narrowest of them, which must be comparable, so that
            one of them holds all; None is an error that names the leaves.
    """
    leaves, _ = leaves_of("tree.dtype", "tree", tree)
    found = list(dict.fromkeys(jnp.dtype(x.dtype) for x in leaves)) or [default_float()]
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ValueError(
            "`tree.dtype(mixed_dtype_handler=...)` must be None, `'promote'`, `'highest'` or `'lowest'`, got "
            f"{mixed_dtype_handler!r}."
        )
    if len(found) == 1:
        return found[0]
    if mixed_dtype_handler is None:
        of = dict(zip(leaf_paths(tree), (x.dtype for x in leaves), strict=True))
        raise ValueError(
            f"`tree.dtype`: the leaves have several dtypes, {listing(f'{path}: {of[path]}' for path in of)}. "
            f"`mixed_dtype_handler` says which one is wanted."
        )
    if mixed_dtype_handler == "promote":
        return common_dtype(*found)
    return functools.reduce(functools.partial(_chosen, mixed_dtype_handler), found)


def _chosen(which: str, x: np.dtype, y: np.dtype) -> np.dtype:
    """The wider or the narrower of two dtypes; refused if none of them holds the other."""
    wide = common_dtype(x, y)
    if wide not in (x, y):
        raise ValueError(
            f"`tree.dtype(mixed_dtype_handler={which!r})`: neither {x} nor {y} holds the other; `'promote'` would "
            f"return {wide}."
        )
    narrow = y if wide == x else x
    return wide if which == "highest" else narrow


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """The tree with the data of random keys, arrays of integers, in the place of the keys: to compare or to store them.

    Args:
        input_tree: a tree of arrays and random keys.
    """

    def data(x: Any) -> Any:
        is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return jtu.tree_map(data, input_tree)
