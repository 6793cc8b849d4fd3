"""What a function on arrays is given: floats, of shapes that fit, along axes that are there."""

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from .arithmetic import at_least_float32

Axes: TypeAlias = int | tuple[int, ...] | None


def floating(owner: str, **arrays: ArrayLike) -> list[Array]:
    """The arguments as arrays; refused unless they hold floats."""
    return [_of_kind(owner, name, x, "floats", "jnp.float32", jnp.floating) for name, x in arrays.items()]


def inexact(owner: str, **arrays: ArrayLike) -> list[Array]:
    """The arguments as arrays; refused unless they hold floats, which may be complex."""
    return [_of_kind(owner, name, x, "floats", "jnp.float32", jnp.inexact) for name, x in arrays.items()]


def integral(owner: str, **arrays: ArrayLike) -> list[Array]:
    """The arguments as arrays; refused unless they hold integers."""
    return [_of_kind(owner, name, x, "integers", "jnp.int32", jnp.integer) for name, x in arrays.items()]


def real(owner: str, **arrays: ArrayLike) -> list[Array]:
    """The arguments as arrays; refused if they hold complex numbers."""
    kinds = jnp.floating, jnp.integer, jnp.bool_
    return [_of_kind(owner, name, x, "real numbers", "jnp.float32", *kinds) for name, x in arrays.items()]


def _of_kind(owner: str, name: str, x: ArrayLike, words: str, example: str, *kinds: Any) -> Array:
    x = jnp.asarray(x)
    if not any(jnp.issubdtype(x.dtype, kind) for kind in kinds):
        raise ValueError(
            f"`{owner}({name}=...)` must hold {words}, got an array of dtype {x.dtype} and shape {x.shape}. If that is "
            f"meant, convert it: `{name}.astype({example})`."
        )
    return x


def numbers(owner: str, dtype: Any, **arrays: ArrayLike) -> list[Array]:
    """The arguments as numbers of this dtype; refused if they hold several, or no real ones."""
    found = real(owner, **arrays)
    for name, x in zip(arrays, found, strict=True):
        check_shape(owner, name, x, (), "one number")
    return [x.astype(dtype) for x in found]


def widened(*arrays: Array) -> tuple[Any, list[Array]]:
    """The dtype of the result, which holds all of the arrays; and the arrays in at least float32.

    What is computed of them is not rounded on the way. A Python number never makes the result wider.
    """
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*arrays)
    return dtype, [x.astype(at_least_float32(dtype)) for x in arrays]


def known(x: ArrayLike, dtype: Any) -> Any:
    """The argument in a dtype: a NumPy array if its value is known while the program is traced."""
    return x.astype(dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype)


def check_one_shape(owner: str, **arrays: Array) -> None:
    """Refuses arrays of different shapes: a broadcast of `(8,)` with `(8, 1)` is a mistake that nobody would see."""
    if len({x.shape for x in arrays.values()}) > 1:
        raise ValueError(f"`{owner}` needs {_names(arrays)} of one shape, got {_shapes(arrays)}.")


def check_shape(owner: str, name: str, x: Array, shape: tuple[int, ...], meaning: str) -> None:
    """Refuses an array of another shape than this one, which means something."""
    if x.shape != shape:
        raise ValueError(f"`{owner}` needs `{name}` of shape {shape}, {meaning}, got {x.shape}.")


def broadcast(owner: str, **arrays: Array) -> list[Array]:
    """The arrays in the shape that they have together; refused if there is none."""
    shape = broadcast_shape(owner, **arrays)
    return [jnp.broadcast_to(x, shape) for x in arrays.values()]


def broadcast_shape(owner: str, **arrays: Array) -> tuple[int, ...]:
    """The shape that the arrays have together; refused if there is none."""
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays.values()))
    except ValueError as error:
        raise ValueError(
            f"`{owner}` needs {_names(arrays)} of shapes that broadcast, got {_shapes(arrays)}."
        ) from error


def check_matrix(owner: str, name: str, x: Array, is_square: bool = False) -> None:
    """Refuses what is no matrix, or no square one."""
    if x.ndim != 2 or (is_square and x.shape[0] != x.shape[1]):
        batch = " `jax.vmap` maps over a batch of them." if x.ndim > 2 else ""
        words = "a square matrix" if is_square else "a matrix"
        raise ValueError(f"`{owner}({name}=...)` must be {words}, got an array of shape {x.shape}.{batch}")


def _names(arrays: dict[str, Array]) -> str:
    *most, last = [f"`{name}`" for name in arrays]
    return f"{', '.join(most)} and {last}" if most else last


def _shapes(arrays: dict[str, Array]) -> str:
    *most, last = [str(x.shape) for x in arrays.values()]
    return f"{', '.join(most)} and {last}" if most else last


def axes_of(owner: str, axis: Axes, name: str, x: Array) -> tuple[int, ...]:
    """The axes as numbers from zero; None is all of them. Refused if the array that is called `name` lacks one."""
    if axis is None:
        return tuple(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if not all(-x.ndim <= a < x.ndim for a in axes):
        there = f"has the axes {-x.ndim} to {x.ndim - 1}" if x.ndim else "has no axes"
        raise ValueError(f"`{owner}(axis={axis!r})`: `{name}` {there}, its shape is {x.shape}.")
    axes = tuple(a % x.ndim for a in axes)
    if len(set(axes)) < len(axes):
        raise ValueError(f"`{owner}(axis={axis!r})` names one axis twice: `{name}` has the shape {x.shape}.")
    return axes


def fitted(owner: str, name: str, x: Array, **arrays: Array) -> list[Array]:
    """The arrays in the shape of the one that is called `name`; refused if one does not fit into it."""
    for other, y in arrays.items():
        if broadcast_shape(owner, **{name: x, other: y}) != x.shape:
            raise ValueError(f"`{owner}` needs `{other}` of the shape of `{name}`, {x.shape}, got {y.shape}.")
    return [jnp.broadcast_to(y, x.shape) for y in arrays.values()]


def without_axes(x: Array, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the array without these axes: that of the examples, where the axes are those of the classes."""
    return tuple(n for a, n in enumerate(x.shape) if a not in axes)


def mask_like(
    owner: str, where: ArrayLike | None, name: str, x: Array, axes: tuple[int, ...] = ()
) -> Bool[Array, "..."] | None:
    """The mask in the shape of an array, or None; refused if it is not made of booleans or does not fit.

    A mask in the shape that the array has without `axes` is one of whole examples.
    """
    if where is None:
        return None
    mask = jnp.asarray(where)
    if mask.dtype != bool:
        raise ValueError(f"`{owner}(where=...)` must hold booleans, got {mask.dtype}: write, say, `where != 0`.")
    examples = without_axes(x, axes)
    if axes and mask.shape == examples:
        mask = jnp.expand_dims(mask, axes)
    elif axes and 0 < mask.ndim != x.ndim:
        raise ValueError(
            f"`{owner}` needs `where` of the shape of `{name}`, {x.shape}, or of its examples, {examples}, "
            f"got {mask.shape}."
        )
    return fitted(owner, name, x, where=mask)[0]


def chosen(where: Bool[Array, "..."] | None, x: Array, otherwise: float = 0) -> Array:
    """The array where the mask is true and a number elsewhere, so that nothing comes from there: not even a NaN."""
    return x if where is None else jnp.where(where, x, jnp.full_like(x, otherwise))


def size_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many entries there are along these axes together."""
    return math.prod(shape[a] for a in axes)
