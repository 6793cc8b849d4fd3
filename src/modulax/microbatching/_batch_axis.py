"""The axis of examples in the arguments of a function."""

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
    """Whether `x` has axes; what is no array in an argument, such as a function in a model, has no examples."""
    return isinstance(x, (jax.Array, np.ndarray))


def reshape_batch_axis(tree: PyTree, microbatch_size: int, axis: int = 0) -> PyTree:
    r"""Every array with its axis of examples cut in two: the number of the microbatch, and the place in it.

    Of $n$ microbatches the first has the examples $0, n, 2n, \dots$, so that a batch that is spread over devices along
    this axis is spread along the places, and each device holds a share of every microbatch.

    Args:
        tree: the arrays; what is no array is left as it is.
        microbatch_size: the number of examples in a microbatch. It divides the length of the axis.
        axis: the axis of examples.
    """
    number_of_parts("reshape_batch_axis", [("tree", tree, axis)], microbatch_size)

    def leaf(x: Any) -> Any:
        return jnp.swapaxes(split(x, microbatch_size, axis), axis % x.ndim, axis % x.ndim + 1) if is_array(x) else x

    return jtu.tree_map(leaf, tree)


def split(x: Any, microbatch_size: int, axis: int) -> Array:
    """The array with the place in the microbatch and the number of the microbatch instead of its axis of examples."""
    axis = axis % x.ndim
    n = x.shape[axis] // microbatch_size
    return jnp.asarray(x).reshape((*x.shape[:axis], microbatch_size, n, *x.shape[axis + 1 :]))


def part_of(tree: PyTree, i: Any, microbatch_size: int, axis: int) -> PyTree:
    """The examples of one microbatch."""

    def leaf(x: Any) -> Any:
        if not is_array(x):
            return x
        return jax.lax.dynamic_index_in_dim(split(x, microbatch_size, axis), i, axis % x.ndim + 1, keepdims=False)

    return jtu.tree_map(leaf, tree)


def number_of_examples(owner: str, batch: Batch) -> int:
    """How many examples the arguments have, refused unless it is the same number in every array.

    Args:
        owner: the function that is at fault if not.
        batch: of each argument its name, its value and the axis of examples.
    """
    sizes = {}
    for name, tree, axis in batch:
        for path, x in leaves_with_paths(tree):
            if not is_array(x):
                continue
            at = f"{name}.{path}" if path else name
            if not -x.ndim <= axis < x.ndim:
                raise ValueError(
                    f"`{owner}`: `{at}` has shape {x.shape}, and its examples should be on axis {axis}. Say which "
                    f"arguments have examples, and on which axis."
                )
            sizes[at] = x.shape[axis]
    if not sizes:
        raise ValueError(
            f"`{owner}`: there is no array in {listing(name for name, _, _ in batch)}, so there are no examples. Say "
            f"which arguments have examples."
        )
    if len(dict.fromkeys(sizes.values())) > 1:
        found = ", ".join(f"{size} in `{at}`" for at, size in sizes.items())
        raise ValueError(f"`{owner}`: every array of the batch has as many examples; there are {found}.")
    return next(iter(sizes.values()))


def number_of_parts(owner: str, batch: Batch, microbatch_size: int) -> int:
    """How many microbatches there are, refused unless their size divides the number of examples."""
    n = number_of_examples(owner, batch)
    check_integer(owner, "microbatch_size", microbatch_size)
    if n % microbatch_size:
        fitting = [size for size in range(1, n + 1) if n % size == 0]
        nearest = sorted(sorted(fitting, key=lambda size: abs(size - microbatch_size))[:6])
        raise ValueError(
            f"`{owner}(microbatch_size={microbatch_size})`: {n} examples cannot be cut into parts of "
            f"{microbatch_size}. Sizes that fit are {', '.join(map(str, nearest))}."
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
    """Of each argument with examples its name, its value and the axis of examples."""
    name = getattr(fun, "__name__", "the function")
    for i in argnums:
        if not -len(args) <= i < len(args):
            raise ValueError(
                f"`{owner}`: argument {i} of `{name}` has the examples, and the call gives {len(args)} arguments by "
                f"position. Give it by position too, or say `argnames=`."
            )
    for key in argnames:
        if key not in kwargs:
            raise ValueError(
                f"`{owner}`: the argument `{key}` of `{name}` has the examples, and the call does not give it by name. "
                f"It gives {listing(kwargs)}."
            )
    values = [(f"args[{i}]", args[i]) for i in argnums] + [(key, kwargs[key]) for key in argnames]
    return [(at, value, axis) for (at, value), axis in zip(values, in_axes, strict=True)]
