"""The last values of a number, in an array of fixed length: the newest is last, and the first ones may still be absent.

Values are in chronological order, so that a state can be read. The shift is negligible in a step: a window has a few
hundred values.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def pushed(window: Float[Array, " size"], x: Float[Array, ""]) -> Float[Array, " size"]:
    """The window with one more value at its end, without its first one."""
    return jnp.concatenate([window[1:], x[None]])


def present(window: Float[Array, " size"], count: Int[Array, ""]) -> Bool[Array, " size"]:
    """Which places of the window hold a value, after `count` values."""
    size = window.shape[0]
    return jnp.arange(size, dtype=count.dtype) >= size - count
