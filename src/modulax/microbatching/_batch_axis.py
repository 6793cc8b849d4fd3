"""The example axis in the arguments of a function, and how it is split into microbatches."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._support.checks import check_integer, listing
from ..tree._paths import leaves_with_paths

Batch = Sequence[tuple[str, PyTree, int]]


def is_array(x: Any) -> bool:
    """Whether `x` is an array; other values in an argument, such as functions in a model, have no examples."""
    return isinstance(x, (jax.Array, np.ndarray))


def reshape_batch_axis(tree: PyTree, microbatch_size: int, axis: int = 0) -> PyTree:
    r"""Split the batch axis of every array into two: the index of the microbatch, and the position in it.

    The first of $n$ microbatches has the examples $0, n, 2n, \dots$. So if the batch is sharded over devices along this
    axis, the positions are sharded, and each device holds a share of every microbatch.

    Args:
        tree: the arrays; other leaves are returned unchanged.
        microbatch_size: number of examples per microbatch; must divide the length of the axis.
        axis: the batch axis.

    Returns:
        A tree with the axes `(microbatch, position)` in place of `axis`.

    Raises:
        ValueError: if an array lacks the axis, the lengths differ, or `microbatch_size` doesn't divide them.
    """
    number_of_parts("reshape_batch_axis", [("tree", tree, axis)], microbatch_size)

    def leaf(x: Any) -> Any:
        return jnp.swapaxes(split(x, microbatch_size, axis), axis % x.ndim, axis % x.ndim + 1) if is_array(x) else x

    return jtu.tree_map(leaf, tree)


def split(x: Any, microbatch_size: int, axis: int) -> Array:
    """Split the batch axis into the axes (position, microbatch)."""
    axis = axis % x.ndim
    n = x.shape[axis] // microbatch_size
    return jnp.asarray(x).reshape((*x.shape[:axis], microbatch_size, n, *x.shape[axis + 1 :]))


def part_of(tree: PyTree, i: Any, microbatch_size: int, axis: int) -> PyTree:
    """Select the examples of one microbatch."""

    def leaf(x: Any) -> Any:
        if not is_array(x):
            return x
        return jax.lax.dynamic_index_in_dim(split(x, microbatch_size, axis), i, axis % x.ndim + 1, keepdims=False)

    return jtu.tree_map(leaf, tree)


def number_of_examples(owner: str, batch: Batch) -> int:
    """Count the examples.

    Args:
        owner: the function to name in the error message.
        batch: name, value and example axis of each argument.

    Raises:
        ValueError: if an axis is no integer, there are no arrays, an array lacks the axis, or the numbers of examples
            differ.
    """
    sizes = {}
    for name, tree, axis in batch:
        if not isinstance(axis, (int, np.integer)):
            raise ValueError(
                f"`{owner}`: the example axis of `{name}` must be an integer, which holds for all of its arrays, got "
                f"{axis!r}."
            )
        for path, x in [(path, x) for path, x in leaves_with_paths(tree) if is_array(x)]:
            at = f"{name}.{path}".rstrip(".")
            if not -x.ndim <= axis < x.ndim:
                raise ValueError(
                    f"`{owner}`: `{at}` has shape {x.shape}, but its examples should be on axis {axis}. Specify which "
                    f"arguments have examples, and on which axis."
                )
            sizes[at] = x.shape[axis]
    if not sizes:
        raise ValueError(
            f"`{owner}`: there is no array in {listing(name for name, _, _ in batch)}, so there are no examples. "
            f"Specify which arguments have examples."
        )
    if len(dict.fromkeys(sizes.values())) > 1:
        found = ", ".join(f"{size} in `{at}`" for at, size in sizes.items())
        raise ValueError(f"`{owner}`: all arrays of the batch must have the same number of examples, got {found}.")
    return next(iter(sizes.values()))


def number_of_parts(owner: str, batch: Batch, microbatch_size: int) -> int:
    """Count the microbatches.

    Raises:
        ValueError: if the microbatch size doesn't divide the number of examples; the message lists sizes that do.
    """
    n = number_of_examples(owner, batch)
    check_integer(owner, "microbatch_size", microbatch_size)
    if n % microbatch_size:
        fitting = [size for size in range(1, n + 1) if n % size == 0]
        nearest = sorted(sorted(fitting, key=lambda size: abs(size - microbatch_size))[:6])
        raise ValueError(
            f"`{owner}(microbatch_size={microbatch_size})` must divide the number of examples, {n}, "
            f"which is divisible by {', '.join(map(str, nearest))}."
        )
    return n // microbatch_size


def arguments(
    owner: str,
    fun: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: Sequence[int],
    argnames: Sequence[str],
    in_axes: Sequence[int],
) -> Batch:
    """Return name, value and example axis of each argument with examples.

    Raises:
        ValueError: if the call lacks one of these arguments.
    """
    name = getattr(fun, "__name__", "the function")
    for i in argnums:
        if not -len(args) <= i < len(args):
            raise ValueError(
                f"`{owner}`: argument {i} of `{name}` should have the examples, but the call passes {len(args)} "
                f"positional arguments. Pass it by position, or name it in `argnames=`."
            )
    for key in argnames:
        if key not in kwargs:
            raise ValueError(
                f"`{owner}`: the argument `{key}` of `{name}` should have the examples, but the call does not pass it "
                f"by keyword. It passes {listing(kwargs)}."
            )
    values = [(f"args[{i}]", args[i]) for i in argnums] + [(key, kwargs[key]) for key in argnames]
    return [(at, value, axis) for (at, value), axis in zip(values, in_axes, strict=True)]
