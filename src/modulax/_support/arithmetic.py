"""Arithmetic that is right at the edges: zero, overflow, low precision, complex numbers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Inexact, Real


def default_float() -> np.dtype:
    """The float dtype of JAX: float32, or float64 under `jax_enable_x64`."""
    return jax.dtypes.canonicalize_dtype(float)


def common_dtype(*dtypes: DTypeLike) -> np.dtype:
    """The dtype that holds them all, whatever the user's rules of promotion."""
    return _common_dtype(jax.config.jax_enable_x64, dtypes)  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def _common_dtype(is_x64: bool, dtypes: tuple[DTypeLike, ...]) -> np.dtype:
    """Asked for every leaf of every tree, and so remembered; without x64 it is another one."""
    del is_x64
    with jax.numpy_dtype_promotion("standard"):
        return jnp.dtype(functools.reduce(jnp.promote_types, dtypes))


def at_least_float32(*dtypes: DTypeLike) -> np.dtype:
    """The dtype in which arithmetic on these is done: never less than float32, complex if one of them is."""
    return common_dtype(*dtypes, jnp.float32)


def in_dtype(x: Array, dtype: DTypeLike) -> Array:
    """The array in a dtype; where it has that already, nothing is added to the program, nor is time spent on it."""
    return x if x.dtype == dtype else x.astype(dtype)


def real_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype of the absolute value of a number of this dtype."""
    return jnp.finfo(dtype).dtype


def dtype_for(x: Array, dtype: DTypeLike | None) -> DTypeLike | None:
    """The dtype that was asked for beside an array: complex if the array is."""
    return dtype if dtype is None or not jnp.iscomplexobj(x) else common_dtype(dtype, jnp.complex64)


def zeros_in(x: Inexact[Array, "*shape"], dtype: DTypeLike | None) -> Inexact[Array, "*shape"]:
    """Zeros of the array's shape in the dtype that was asked for, or the array's own; complex if the array is."""
    return jnp.zeros_like(x, dtype_for(x, dtype))


def copy_in(x: Inexact[Array, "*shape"], dtype: DTypeLike | None = None) -> Inexact[Array, "*shape"]:
    """A copy of the array in the dtype that was asked for, or the array's own; complex if the array is."""
    return jnp.array(x, dtype_for(x, dtype), copy=True)


def abs_sq(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""$|x|^2$, which is real for complex `x` too and, unlike `abs(x) ** 2`, differentiable at zero."""
    if jnp.iscomplexobj(x):
        return x.real**2 + x.imag**2
    return x * x


def without_infinities(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """The array with the largest numbers of its dtype in the place of infinities; NaN stays NaN."""
    if jnp.iscomplexobj(x):
        return jax.lax.complex(without_infinities(x.real), without_infinities(x.imag))
    largest = jnp.finfo(x.dtype).max
    return jax.lax.clamp(-largest, x, largest)


def moment(decay: Any, m: Any, x: Any, rest: Any = None) -> Any:
    r"""A running average with a new value, $\beta m + (1 - \beta) x$; `rest` is $1 - \beta$, if it is known already."""
    return decay * m + (1 - decay if rest is None else rest) * x


def infinity_moment(decay: Any, m: Any, x: Any, eps: Any) -> Any:
    r"""The running maximum of absolute values, $\max(\beta m, |x| + \varepsilon)$."""
    return jnp.maximum(decay * m, eps + jnp.abs(x))


def ratio(x: Any, y: Any) -> Any:
    """`x / y` where `y` is positive, and zero where it is not: nothing has happened yet."""
    return jnp.where(y > 0, x / jnp.where(y > 0, y, 1), 0)


def bias(decay: Any, t: Any) -> Any:
    r"""What a running average that began at zero must be divided by after $t$ values: $1 - \beta^t$."""
    return 1 - decay**t


@jax.custom_jvp
def safe_sqrt(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""$\sqrt x$ whose derivative at zero is zero instead of infinity.

    An optimizer takes the square root of moments that are exactly zero wherever a parameter has had no gradient, and
    `inf * 0` would make every hypergradient NaN. The forward pass is one square root: the rule costs only whoever
    differentiates.
    """
    return jnp.sqrt(x)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = safe_sqrt(x)
    positive = y > 0
    return y, jnp.where(positive, dx / (2 * jnp.where(positive, y, 1)), jnp.zeros_like(dx))


def safe_increment(count: Real[ArrayLike, "*shape"]) -> Real[Array, "*shape"]:
    """`count + 1`, or `count` where that would overflow: a step counter saturates, it never turns negative.

    Args:
        count: integers or floats of any dtype, which the result has as well.
    """
    count = jnp.asarray(count)
    limit = (jnp.iinfo if jnp.issubdtype(count.dtype, jnp.integer) else jnp.finfo)(count.dtype).max
    return jnp.where(count < np.asarray(limit, count.dtype), count + jnp.ones_like(count), count)


safe_int32_increment = safe_increment


def second_moment_like(p: Array, value: Any = 0) -> Array:
    """An accumulator for squares: real, and at least float32, because bfloat16 cannot hold increments of 1e-3."""
    return jnp.full_like(p, value, at_least_float32(real_dtype(p.dtype)))
