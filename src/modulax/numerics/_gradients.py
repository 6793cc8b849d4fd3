"""Functions that affect derivatives only."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arguments import real_arrays
from .._support.arithmetic import at_least_float32, is_inexact_array, real_dtype


def scale_gradient(inputs: PyTree, scale: ArrayLike) -> PyTree:
    """Scale the gradient: return the inputs unchanged, with their derivatives multiplied by a number.

    Use it to make a part of a model learn faster or slower than the rest. 0 stops the gradient, and a negative number
    reverses it, as in domain-adversarial training. Forward- and reverse-mode derivatives are scaled alike, and a second
    derivative is scaled twice.

    Args:
        inputs: a tree; leaves that are not floating-point or complex pass through.
        scale: the factor. It may be traced, and gradients can be differentiated with respect to it.

    Returns:
        The inputs. A scale of zero turns any gradient into zero, even one that is not finite.

    Raises:
        ValueError: if `scale` is not a real scalar.

    References:
        Ganin and Lempitsky, [Unsupervised Domain Adaptation by Backpropagation](https://arxiv.org/abs/1409.7495), 2015
    """
    (number,) = real_arrays("scale_gradient", scale=scale)
    if number.shape != ():
        raise ValueError(f"`scale_gradient(scale=...)` must be a scalar, got an array of shape {number.shape}.")

    def leaf(x: Any) -> Any:
        has_gradient = is_inexact_array(x) or isinstance(x, float | complex)
        return _scaled(jnp.asarray(x), number) if has_gradient else x

    return jtu.tree_map(leaf, inputs)


@jax.custom_jvp
def _scaled(x: Array, scale: Array) -> Array:
    """The identity, with a derivative rule that scales."""
    del scale
    return x


@_scaled.defjvp
def _scaled_jvp(primals, tangents):
    (x, scale), (dx, _) = primals, tangents
    wide = at_least_float32(x.dtype)
    with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
        scaled = scale.astype(real_dtype(wide)) * dx.astype(wide)
    return _scaled(x, scale), jnp.where(scale == 0, jnp.zeros_like(dx), scaled.astype(dx.dtype))
