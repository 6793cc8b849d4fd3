"""Arithmetic on pytrees, leaf by leaf.

The result of two trees has the dtype that their leaves promote to. A scalar argument is weakly typed, like a Python
number, even if it is an array: it never widens a leaf. The arithmetic is done in at least float32 and rounded once.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arithmetic import at_least_float32, common_dtype, in_dtype, real_dtype
from ._leaves import columns, leaves_of, map_arrays
from ._paths import leaf_paths


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    """Add two or more trees, leaf by leaf.

    Args:
        tree_x: a tree of arrays, whose structure the result has.
        tree_y: a tree with leaves at the same paths.
        other_trees: further trees.

    Returns:
        A tree of sums. Leaves of different dtypes are promoted; the sum is rounded once.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes don't broadcast to one of them.
    """
    more = {f"other_trees[{i}]": tree for i, tree in enumerate(other_trees)}
    return _map("tree.add", lambda *xs: functools.reduce(operator.add, xs), tree_x=tree_x, tree_y=tree_y, **more)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Subtract two trees, leaf by leaf.

    Args:
        tree_x: a tree of arrays, whose structure the result has.
        tree_y: a tree with leaves at the same paths.

    Returns:
        A tree of differences; see `add` for its dtypes.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes don't broadcast to one of them.
    """
    return _map("tree.sub", operator.sub, tree_x=tree_x, tree_y=tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Multiply two trees, leaf by leaf and entry by entry; to multiply a tree by a number, use `scale`.

    Args:
        tree_x: a tree of arrays, whose structure the result has.
        tree_y: a tree with leaves at the same paths; a scalar leaf multiplies a whole array.

    Returns:
        A tree of products; see `add` for its dtypes.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes don't broadcast to one of them.
    """
    return _map("tree.mul", operator.mul, tree_x=tree_x, tree_y=tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Divide two trees, leaf by leaf and entry by entry.

    Args:
        tree_x: a tree of arrays, whose structure the result has.
        tree_y: a tree with leaves at the same paths; a scalar leaf divides a whole array.

    Returns:
        A tree of quotients, floats even for integers; see `add` for its dtypes.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes don't broadcast to one of them.
    """
    return _map("tree.div", operator.truediv, tree_x=tree_x, tree_y=tree_y)


def scale(scalar: ArrayLike, tree: PyTree) -> PyTree:
    r"""Multiply a tree by a scalar, $\alpha x$.

    Args:
        scalar: $\alpha$.
        tree: a tree of arrays.

    Returns:
        A tree with the dtypes of `tree`: a float32 array does not widen a bfloat16 leaf. Only the kind can change:
        integers times a float are floats, and real numbers times a complex number are complex.

    Raises:
        ValueError: if `scalar` is not a scalar, or a leaf is not an array.
    """
    leaves, treedef = leaves_of("tree.scale", "tree", tree)
    number = _number("tree.scale", "scalar", scalar)
    return treedef.unflatten(_each(operator.mul, [[x] for x in leaves], [number]))


def add_scale(tree_x: PyTree, scalar: ArrayLike, tree_y: PyTree) -> PyTree:
    r"""Add a multiple of one tree to another, $x + \alpha y$.

    Where `tree_x` has None the result has None, whatever `tree_y` holds there. So gradients, which have None for leaves
    that are not trained, can be combined with a whole model.

    Args:
        tree_x: a tree of arrays, whose structure the result has.
        scalar: $\alpha$.
        tree_y: a tree with leaves at the same paths.

    Returns:
        A tree of the dtypes that the two trees promote to, which `scalar` does not widen; see `scale`.

    Raises:
        ValueError: if `scalar` is not a scalar, the trees don't have leaves at the same paths, or shapes don't
            broadcast to one of them.
    """
    number = _number("tree.add_scale", "scalar", scalar)
    # A leaf that is absent in `tree_x`, as under a mask, is absent in the sum.
    tree_y = _without_absent(tree_y, tree_x)
    return _map("tree.add_scale", lambda x, y, a: x + a * y, number, tree_x=tree_x, tree_y=tree_y)


def clip(tree: PyTree, min_value: ArrayLike | None = None, max_value: ArrayLike | None = None) -> PyTree:
    """Clip every entry of a tree to an interval; NaN stays NaN.

    The real and imaginary parts of complex entries are clipped separately.

    Args:
        tree: a tree of arrays.
        min_value: lower bound, or None.
        max_value: upper bound, or None; it takes precedence over a larger `min_value`.

    Returns:
        A tree with the dtypes of `tree`, which the bounds do not widen; integers clipped to float bounds become floats.

    Raises:
        ValueError: if a bound is not a scalar, or a leaf is not an array.
    """
    leaves, treedef = leaves_of("tree.clip", "tree", tree)
    bounds = {"min_value": min_value, "max_value": max_value}
    given = {name: _number("tree.clip", name, x) for name, x in bounds.items() if x is not None}

    def clipped(x: Array, *numbers: Array) -> Array:
        bound = dict(zip(given, numbers, strict=True))
        return clip_entries(x, bound.get("min_value"), bound.get("max_value"))

    return treedef.unflatten(_each(clipped, [[x] for x in leaves], list(given.values())))


def clip_entries(x: Array, low: Any, high: Any) -> Array:
    """Clip every entry, or the real and imaginary parts of it, to an interval."""
    if jnp.iscomplexobj(x):
        # `jnp.clip` refuses complex arrays, because these have no order.
        return jax.lax.complex(jnp.clip(x.real, low, high), jnp.clip(x.imag, low, high))
    return jnp.clip(x, low, high)


def where(condition: ArrayLike, tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Select one of two trees, or entries of each leaf from the one or the other.

    It selects without arithmetic, so leaves may be integers or random keys too, as in the state of a transform.

    Args:
        condition: a boolean, or an array of booleans that broadcasts to the shape of every leaf.
        tree_x: values where the condition is true; a tree of arrays, whose structure the result has.
        tree_y: values where it is false; a tree with leaves at the same paths.

    Returns:
        A tree of the dtypes that the two trees promote to.

    Raises:
        ValueError: if `condition` isn't boolean or doesn't broadcast to a leaf, the trees don't have leaves at the same
            paths, or shapes don't broadcast to one of them.
    """
    owner = "tree.where"
    condition = jnp.asarray(condition)
    if condition.dtype != bool:
        raise ValueError(f"`{owner}(condition=...)` must hold booleans, got {condition.dtype}: use `condition != 0`.")
    (xs, ys), treedef = columns(owner, tree_x=tree_x, tree_y=tree_y)

    def chosen(i: int, x: Array, y: Array) -> Array:
        x, y = _of_one_shape(owner, tree_x, i, x, y)
        if x.dtype != y.dtype:
            dtype = common_dtype(x.dtype, y.dtype)
            x, y = in_dtype(x, dtype), in_dtype(y, dtype)
        if _shape_together(condition.shape, x.shape) != x.shape:
            path = leaf_paths(tree_x)[i]
            raise ValueError(
                f"`{owner}(condition=...)` must broadcast to every leaf; its shape is {condition.shape}, and at "
                f"`{path}` the shape is {x.shape}."
            )
        return jnp.where(jnp.broadcast_to(condition, x.shape) if condition.ndim else condition, x, y)

    return treedef.unflatten([chosen(i, x, y) for i, (x, y) in enumerate(zip(xs, ys, strict=True))])


def conj(tree: PyTree) -> PyTree:
    """Take the complex conjugate of every leaf; real leaves are unchanged.

    Args:
        tree: a tree of arrays.

    Returns:
        A tree of the same structure and dtypes.

    Raises:
        ValueError: if a leaf is not an array.
    """
    return map_arrays(jnp.conj, "tree.conj", tree)


def real(tree: PyTree) -> PyTree:
    """Take the real part of every leaf; real leaves are unchanged.

    Args:
        tree: a tree of arrays.

    Returns:
        A tree of the same structure.

    Raises:
        ValueError: if a leaf is not an array.
    """
    return map_arrays(jnp.real, "tree.real", tree)


def _map(owner: str, function: Callable[..., Array], *numbers: Array, **trees: PyTree) -> PyTree:
    """Apply a function to the broadcast leaves of several trees at each path, and rebuild the first structure."""
    found, treedef = columns(owner, **trees)
    like = next(iter(trees.values()))
    rows = [_of_one_shape(owner, like, i, *xs) for i, xs in enumerate(zip(*found, strict=True))]
    return treedef.unflatten(_each(function, rows, numbers))


def _each(
    function: Callable[..., Array], rows: Sequence[Sequence[Array]], numbers: Sequence[Array] = ()
) -> list[Array]:
    """Compute `function(*arrays, *numbers)` per row in at least float32, rounded to the dtype the arrays promote to."""
    # A Python number has a weak type, so that float32 scalars do not widen bfloat16 leaves.
    examples = [_of_its_kind(x) for x in numbers]
    out = []
    with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
        for arrays in rows:
            dtype = common_dtype(*(x.dtype for x in arrays))
            dtype = jnp.result_type(dtype, *examples) if examples else dtype
            is_inexact = jnp.issubdtype(dtype, jnp.inexact)
            wide = at_least_float32(dtype) if is_inexact else dtype
            real = real_dtype(wide) if is_inexact else dtype
            y = function(*(in_dtype(x, wide if jnp.iscomplexobj(x) else real) for x in (*arrays, *numbers)))
            out.append(in_dtype(y, dtype) if is_inexact else y)
    return out


def _of_its_kind(x: Array) -> Any:
    """A Python number of the same kind (bool, integer, float, complex), which widens nothing in type promotion."""
    kinds = ((jnp.complexfloating, 1j), (jnp.floating, 1.0), (jnp.integer, 1))
    return next((number for kind, number in kinds if jnp.issubdtype(x.dtype, kind)), True)


def _number(owner: str, name: str, x: ArrayLike) -> Array:
    """Convert an argument that must be a scalar."""
    x = jnp.asarray(x)
    if x.shape != ():
        raise ValueError(f"`{owner}({name}=...)` must be a scalar, got an array of shape {x.shape}.")
    return x


def _of_one_shape(owner: str, like: PyTree, i: int, *xs: Array) -> list[Array]:
    """Broadcast the arrays to the shape of one of them.

    Raises:
        ValueError: if they don't broadcast to the shape of one of them.
    """
    shapes = [x.shape for x in xs]
    if len(set(shapes)) == 1:
        return list(xs)
    shape = _shape_together(*shapes)
    if shape not in shapes:
        raise ValueError(
            f"`{owner}`: at `{leaf_paths(like)[i]}` the shapes are {' and '.join(map(str, shapes))}. They must be "
            "equal, or broadcast to one of them."
        )
    return [jnp.broadcast_to(x, shape) for x in xs]


def _shape_together(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that these broadcast to, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _without_absent(tree: PyTree, like: PyTree) -> PyTree:
    """Put None where `like` has None, if the rest of the tree has the structure of `like`."""
    try:
        treedef = jtu.tree_structure(like, is_leaf=lambda x: x is None)
        beside = treedef.flatten_up_to(tree)
    except ValueError:
        return tree
    has = [x is not None for x in jtu.tree_leaves(like, is_leaf=lambda x: x is None)]
    return treedef.unflatten([y if keep else None for y, keep in zip(beside, has, strict=True)])
