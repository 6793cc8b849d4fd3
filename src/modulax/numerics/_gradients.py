"""Functions that only derivatives notice."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arguments import real
from .._support.arithmetic import at_least_float32, real_dtype


def scale_gradient(inputs: PyTree, scale: ArrayLike) -> PyTree:
    r"""The inputs as they are, with derivatives times a number.

    It makes a part of a model learn faster or slower than the rest: 0 stops the gradient, and a negative number turns
    it round, as in adversarial training. Forward- and reverse-mode derivatives are scaled alike, and a second
    derivative twice.

    Args:
        inputs: a tree; what is no floating or complex array passes through.
        scale: the number. It may be traced, and what is computed of the gradients can be differentiated by it.

    Returns:
        The inputs. A scale of zero makes zero of every gradient that comes back, also of one that is not finite.

    References:
        Ganin and Lempitsky, [Unsupervised Domain Adaptation by
        Backpropagation](https://arxiv.org/abs/1409.7495), 2015
    """
    (number,) = real("scale_gradient", scale=scale)
    if number.shape != ():
        raise ValueError(f"`scale_gradient(scale=...)` must be a number, got an array of shape {number.shape}.")

    def leaf(x: Any) -> Any:
        has_gradient = eqx.is_inexact_array(x) or isinstance(x, float | complex)
        return _scaled(jnp.asarray(x), number) if has_gradient else x

    return jtu.tree_map(leaf, inputs)


@jax.custom_jvp
def _scaled(x: Array, scale: Array) -> Array:
    del scale
    return x


@_scaled.defjvp
def _scaled_jvp(primals, tangents):
    (x, scale), (dx, _) = primals, tangents
    wide = at_least_float32(x.dtype)
    with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
        scaled = scale.astype(real_dtype(wide)) * dx.astype(wide)
    return _scaled(x, scale), jnp.where(scale == 0, jnp.zeros_like(dx), scaled.astype(dx.dtype))
