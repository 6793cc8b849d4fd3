"""Arithmetic that is correct at the edges: zero, overflow, low-precision dtypes and complex numbers."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Inexact, Int, Real

from .placement import typed_like

try:
    enable_x64 = jax.enable_x64
except AttributeError:  # JAX 0.7
    from jax.experimental import enable_x64 as enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def default_float() -> np.dtype:
    """Return JAX's default float dtype: float32, or float64 under `jax_enable_x64`."""
    return jax.dtypes.canonicalize_dtype(float)


def largest_float() -> Float[Array, ""]:
    """The largest finite number of JAX's default float dtype: for logs and comparisons in place of infinity."""
    return jnp.array(jnp.finfo(default_float()).max, default_float())


def loss_of(value: ArrayLike) -> Float[Array, ""]:
    """The extra argument `value` in the dtype of the numbers that all leaves share."""
    return jnp.asarray(value).astype(default_float())


def dtype_in_program(dtype: Any) -> Any:
    """Return the dtype that arrays of another one have in a compiled program: float32 for float64, unless x64 is on."""
    return dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else jax.dtypes.canonicalize_dtype(dtype)


def is_inexact_array(x: Any) -> bool:
    """Whether `x` is an array of floating-point or complex numbers.

    NumPy arrays of bfloat16 and float8 are too, as safetensors and orbax restore them; for `equinox.is_inexact_array`
    they are not.
    """
    return isinstance(x, (jax.Array, np.ndarray, np.generic)) and jnp.issubdtype(x.dtype, jnp.inexact)


def is_numeric_array(x: Any) -> bool:
    """Whether `x` is an array that JAX accepts: not a NumPy array of strings, objects or dates."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind in "biufc" or jnp.issubdtype(x.dtype, np.number)  # the kind of bfloat16 is "V"
    return isinstance(x, jax.Array)


@functools.cache  # because it is called for every leaf of every tree; what dtypes promote to never changes
def common_dtype(*dtypes: DTypeLike) -> np.dtype:
    """Return the dtype that all of these promote to, whatever `jax_numpy_dtype_promotion` is set to.

    JAX promotes no float of one byte, such as float8: with another float it is that one, else float32.
    """
    # A program may have set strict promotion, under which dtypes that differ are an error.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.dtype(functools.reduce(jnp.promote_types, _without_bytes(dtypes)))


def _without_bytes(dtypes: tuple[Any, ...]) -> Sequence[Any]:
    """The dtypes, if they differ, with the floats of one byte replaced by what they count as beside others."""
    floats = [d for d in dtypes if jnp.issubdtype(d, jnp.inexact)]
    wide = [d for d in floats if jnp.dtype(d).itemsize > 1]
    if len(wide) == len(floats) or len(set(map(jnp.dtype, dtypes))) == 1:
        return dtypes
    return [*(d for d in dtypes if d not in floats), *(wide or [jnp.float32])]


def at_least_float32(*dtypes: DTypeLike) -> np.dtype:
    """Return the dtype to compute in: at least float32, and complex if one of the dtypes is."""
    return common_dtype(*dtypes, jnp.float32)


def in_dtype(x: Array, dtype: DTypeLike) -> Array:
    """Cast an array; one that has the dtype already is returned as it is, at no cost in tracing or in the program."""
    return x if x.dtype == dtype else x.astype(dtype)


def is_narrower(dtype: DTypeLike, than: DTypeLike) -> bool:
    """Whether a real floating-point dtype has fewer bits than another one."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < jnp.finfo(than).bits


def real_dtype(dtype: DTypeLike) -> np.dtype:
    """Return the dtype of the absolute value: `float32` for `complex64`."""
    return jnp.finfo(dtype).dtype


def scalar_like(x: ArrayLike, like: Array) -> Array:
    """Cast a scalar to the real dtype of an array."""
    # A hyperparameter never changes the dtype of the arithmetic.
    return jnp.asarray(x).astype(real_dtype(like.dtype))


def dtype_for(x: Array, dtype: DTypeLike | None) -> DTypeLike | None:
    """Return the requested dtype, made complex if the array is complex; None stays None."""
    return dtype if dtype is None or not jnp.iscomplexobj(x) else common_dtype(dtype, jnp.complex64)


def zeros_in(x: Inexact[Array, "*shape"], dtype: DTypeLike | None) -> Inexact[Array, "*shape"]:
    """Zeros of the array's shape, in the requested dtype or else its own; complex if the array is complex."""
    return jnp.zeros_like(x, dtype_for(x, dtype))


def copy_in(x: Inexact[Array, "*shape"], dtype: DTypeLike | None = None) -> Inexact[Array, "*shape"]:
    """A copy of the array in the requested dtype or else its own; complex if the array is complex."""
    return jnp.array(x, dtype_for(x, dtype), copy=True)


def abs_sq(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """$|x|^2$: real for complex `x`, and with the right second derivative at zero, unlike `abs(x) ** 2`."""
    if jnp.iscomplexobj(x):
        # JAX returns a second derivative of zero for `abs(x) ** 2` at a complex zero.
        return x.real**2 + x.imag**2
    return x * x


def without_infinities(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """Replace infinities with the largest finite values of the dtype; NaN stays NaN."""
    if jnp.iscomplexobj(x):
        # Complex numbers have no order by which to clamp them.
        return jax.lax.complex(without_infinities(x.real), without_infinities(x.imag))
    largest = jnp.finfo(x.dtype).max
    return jax.lax.clamp(-largest, x, largest)


def moment(decay: Any, m: Any, x: Any, rest: Any = None) -> Any:
    r"""Update an exponential moving average, $\beta m + (1 - \beta) x$; `rest` is $1 - \beta$ where that is known."""
    return decay * m + (1 - decay if rest is None else rest) * x


def infinity_moment(decay: Any, m: Any, x: Any, eps: Any) -> Any:
    r"""Update an exponentially decayed running maximum of absolute values, $\max(\beta m, |x| + \varepsilon)$."""
    return jnp.maximum(decay * m, eps + jnp.abs(x))


def ratio(x: Any, y: Any) -> Any:
    """Divide `x` by `y >= 0`, and return 0 where `y` is 0, for example before the first step. A NaN stays NaN."""
    # The inner `where` is for the derivative: that of a division by zero is NaN even where the result is not used. See
    # https://docs.jax.dev/en/latest/faq.html#gradients-contain-nan-where-using-where
    return jnp.where(y <= 0, 0, x / jnp.where(y <= 0, 1, y))


def depend_on(u: Array, other: Array) -> Array:
    """Return an array that reads another one, such as a part of the new state, which is never negative.

    It would be NaN where the other one is negative, which the compiler cannot rule out.

    XLA for TPU makes one kernel of two results if one of them reads the other. Of two that only share arguments it may
    make two kernels, which read these twice and store what they share.
    """
    is_negative = jax.lax.lt(other, np.zeros((), other.dtype))
    if is_negative.ndim and is_negative.shape != u.shape:
        is_negative = jnp.broadcast_to(is_negative, u.shape)
    return jax.lax.select(is_negative, jax.lax.full_like(u, math.nan), u)


def kept(g: Array, old: Array, count: Any) -> Array:
    """Return the gradient in the place of that of an earlier step, after any number of steps.

    XLA makes a result that is an argument by a copy of its own, which reads the argument once more. A choice between
    two arguments is written by the kernel that reads them, and the compiler cannot know that no count is negative.
    """
    return jnp.where(count >= 0, typed_like(g, old), old)


def mean(x: Array, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Compute the mean over some axes, in the dtype of `x`; that of no entries is 0, and not NaN."""
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    total = jnp.sum(x, axis=tuple(axes), keepdims=keepdims)
    return total / max(math.prod(x.shape[a] for a in axes), 1)


def bias(decay: Any, t: Any) -> Any:
    r"""Bias correction of an exponential moving average that started at zero, after $t$ steps: $1 - \beta^t$."""
    return 1 - decay**t


@jax.custom_jvp
def safe_sqrt(x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    r"""Compute $\sqrt x$ with derivative zero at zero, where that of `jnp.sqrt` is infinite.

    The second moment of a parameter that has had no gradient is exactly zero. An infinite derivative there turns every
    hypergradient into NaN, because `inf * 0` is NaN. The forward pass is still a single square root: the custom rule
    costs something only under differentiation.
    """
    return jnp.sqrt(x)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    # Not `jnp.sqrt`, so that derivatives of higher order are finite at zero too.
    y = safe_sqrt(x)
    positive = y > 0
    return y, jnp.where(positive, dx / (2 * jnp.where(positive, y, 1)), jnp.zeros_like(dx))


def safe_power(x: Array, exponent: ArrayLike) -> Array:
    """Compute a power of nonnegative numbers with an exponent from zero on, with derivative zero at zero."""
    positive = x > 0
    at_zero = jnp.where(jnp.asarray(exponent) == 0, 1, 0).astype(x.dtype)
    return jnp.where(positive, jnp.where(positive, x, 1) ** exponent, at_zero)


_RANKS = (np.bool_, np.integer, np.floating, np.complexfloating)


def rank_of(dtype: Any) -> int:
    """The rank of a dtype's kind, from booleans to complex numbers: a value can be cast to its own or a higher one."""
    return next((i for i, kind in enumerate(_RANKS) if jnp.issubdtype(dtype, kind)), len(_RANKS))


def no_steps() -> Int[Array, ""]:
    """A step count of zero, without the program that `jnp.zeros` compiles outside of one."""
    return jnp.asarray(np.zeros((), np.int32))


def is_due(count: Array, interval: Any) -> Array:
    """Whether a step count is a multiple of an interval, which is rounded: what is computed every few steps is due."""
    every = jax.lax.convert_element_type(jnp.round(interval), count.dtype)
    return jax.lax.eq(jax.lax.rem(count, every), jax.lax.full_like(count, 0))


def safe_increment(count: Real[ArrayLike, "*shape"]) -> Real[Array, "*shape"]:
    """Increment a step counter without overflow: `count + 1`, or `count` once it is the largest value of its dtype.

    Args:
        count: integers or floats of any dtype; the result has the same dtype.

    Raises:
        ValueError: if the count is complex or boolean.
    """
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.complexfloating) or count.dtype == bool:
        raise ValueError(f"`safe_increment` counts with integers or real numbers; got an array of {count.dtype}.")
    # An int32 wraps around to a negative number, for which a bias correction or a schedule is wrong.
    limit = (jnp.iinfo if jnp.issubdtype(count.dtype, jnp.integer) else jnp.finfo)(count.dtype).max
    return jnp.where(count < np.asarray(limit, count.dtype), count + jnp.ones_like(count), count)


def second_moment_like(p: Array, value: Any = 0) -> Array:
    """Create an accumulator for squares: real, and at least float32, because bfloat16 loses increments of 1e-3."""
    return jnp.full_like(p, value, at_least_float32(real_dtype(p.dtype)))
