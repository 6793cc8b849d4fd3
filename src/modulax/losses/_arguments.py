"""Checks and conversions of arguments that only losses have: masks, weights, and scalars."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from .._plugin.arguments import Requirement, broadcast_shape, real_arrays


def scalars(owner: str, dtype: Any, needs: Requirement | None = None, /, **arrays: ArrayLike) -> list[Array]:
    """Convert the arguments to real scalars of this dtype.

    Raises:
        ValueError: if one is not real, is not a scalar, or is known not to meet the requirement.
    """
    numbers = real_arrays(owner, needs, **arrays)
    for name, x in zip(arrays, numbers, strict=True):
        check_shape(owner, name, x, (), "a scalar")
    return [x.astype(dtype) for x in numbers]


def check_shape(owner: str, name: str, x: Array, shape: tuple[int, ...], meaning: str) -> None:
    """Check that an array has this shape.

    Args:
        owner: the function that is called.
        name: the argument's name.
        x: the array.
        shape: the required shape.
        meaning: what that shape means, for the error message.

    Raises:
        ValueError: if it has another shape.
    """
    if x.shape != shape:
        raise ValueError(f"`{owner}` needs `{name}` of shape {shape}, {meaning}, got {x.shape}.")


def fitted(owner: str, name: str, x: Array, **arrays: Array) -> list[Array]:
    """Broadcast the arrays to the shape of `x`, the array that is called `name`.

    Raises:
        ValueError: if one doesn't broadcast to it.
    """
    for other, y in arrays.items():
        if broadcast_shape(owner, **{name: x, other: y}) != x.shape:
            raise ValueError(
                f"`{owner}` needs `{other}` to broadcast to the shape of `{name}`, {x.shape}, got {y.shape}."
            )
    return [jnp.broadcast_to(y, x.shape) for y in arrays.values()]


def chosen(where: Bool[Array, "..."] | None, x: Array, otherwise: float = 0) -> Array:
    """Keep the array where the mask is true and put a constant elsewhere, so that not even a NaN gets through."""
    return x if where is None else jnp.where(where, x, jnp.full_like(x, otherwise))
