"""Checks and conversions of array arguments: dtypes, shapes and axes.

Losses, projections and estimators call these first. Each function takes the name of its caller (`owner`) and of the
argument, so that the error message quotes the call as the user wrote it. Values are checked by `traced_check`, which
reports them only under `checkify`, and is free otherwise.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, ArrayLike

from .arithmetic import at_least_float32
from .checks import Requirement

Axes: TypeAlias = int | tuple[int, ...] | None


def floating(owner: str, **arrays: ArrayLike) -> list[Array]:
    """Convert the arguments to arrays.

    Raises:
        ValueError: if one does not hold real floats.
    """
    return [_of_kind(owner, name, x, "floats", "jnp.float32", jnp.floating) for name, x in arrays.items()]


def inexact(owner: str, **arrays: ArrayLike) -> list[Array]:
    """Convert the arguments to arrays.

    Raises:
        ValueError: if one does not hold floats, real or complex.
    """
    return [_of_kind(owner, name, x, "floats", "jnp.float32", jnp.inexact) for name, x in arrays.items()]


def integral(owner: str, **arrays: ArrayLike) -> list[Array]:
    """Convert the arguments to arrays.

    Raises:
        ValueError: if one does not hold integers.
    """
    return [_of_kind(owner, name, x, "integers", "jnp.int32", jnp.integer) for name, x in arrays.items()]


def real_arrays(owner: str, needs: Requirement | None = None, /, **arrays: ArrayLike) -> list[Array]:
    """Convert the arguments to arrays.

    Raises:
        ValueError: if one holds complex numbers, or anything else but floats, integers or booleans, or if it is a
            number of Python or NumPy that doesn't meet the requirement; JAX arrays are checked under `checkify`.
    """
    kinds = jnp.floating, jnp.integer, jnp.bool_
    reals = {name: _of_kind(owner, name, x, "real numbers", "jnp.float32", *kinds) for name, x in arrays.items()}
    if needs is None:
        return list(reals.values())
    met = {name: needs.is_met_by(known(arrays[name], x.dtype)) for name, x in reals.items()}
    return [traced_check(x, met[name], f"`{owner}({name}=...)` {needs.words}.") for name, x in reals.items()]


def _of_kind(owner: str, name: str, x: ArrayLike, words: str, example: str, *kinds: Any) -> Array:
    """Convert one argument, and check that its dtype is of one of these kinds."""
    x = jnp.asarray(x)
    if not any(jnp.issubdtype(x.dtype, kind) for kind in kinds):
        raise ValueError(
            f"`{owner}({name}=...)` must hold {words}, got an array of dtype {x.dtype} and shape {x.shape}. If that is "
            f"intended, convert it: `{name}.astype({example})`."
        )
    return x


def promoted(*arrays: Array) -> tuple[Any, list[Array]]:
    """Return the dtype of the result, and the arrays cast to at least float32 for the arithmetic in between.

    The dtype is the one that the arrays promote to; a Python number never widens it.
    """
    # Functions of arrays promote in the same way in a program that has set strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*arrays)
    return dtype, [x.astype(at_least_float32(dtype)) for x in arrays]


def known(x: ArrayLike, dtype: Any) -> Any:
    """Cast an argument; one that is known at trace time becomes a NumPy array, so that it stays known."""
    return x.astype(dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype)


def check_one_shape(owner: str, **arrays: Array) -> None:
    """Check that all arrays have the same shape: broadcasting `(8,)` with `(8, 1)` is nearly always a silent mistake.

    Raises:
        ValueError: if they don't.
    """
    if len({x.shape for x in arrays.values()}) > 1:
        raise ValueError(f"`{owner}` needs {_names(arrays)} of the same shape, got {_shapes(arrays)}.")


def broadcast(owner: str, **arrays: Array) -> list[Array]:
    """Broadcast the arrays to their common shape.

    Raises:
        ValueError: if they have none.
    """
    shape = broadcast_shape(owner, **arrays)
    return [jnp.broadcast_to(x, shape) for x in arrays.values()]


def broadcast_shape(owner: str, **arrays: Array) -> tuple[int, ...]:
    """Return the shape that the arrays broadcast to.

    Raises:
        ValueError: if there is none.
    """
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays.values()))
    except ValueError as error:
        raise ValueError(
            f"Incompatible shapes for broadcasting: `{owner}` needs {_names(arrays)} of shapes that broadcast, got "
            f"{_shapes(arrays)}."
        ) from error


def check_matrix(owner: str, name: str, x: Array, is_square: bool = False) -> None:
    """Check that an array is a matrix, or a square matrix.

    Raises:
        ValueError: if it isn't.
    """
    if x.ndim != 2 or (is_square and x.shape[0] != x.shape[1]):
        batch = " `jax.vmap` maps over a batch of them." if x.ndim > 2 else ""
        words = "a square matrix" if is_square else "a matrix"
        raise ValueError(f"`{owner}({name}=...)` must be {words}, got an array of shape {x.shape}.{batch}")


def _names(arrays: dict[str, Array]) -> str:
    return _and([f"`{name}`" for name in arrays])


def _shapes(arrays: dict[str, Array]) -> str:
    return _and([str(x.shape) for x in arrays.values()])


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def axes_of(owner: str, axis: Axes, name: str, x: Array) -> tuple[int, ...]:
    """Normalize the axes of the array that is called `name` to integers from zero; None means all axes.

    Raises:
        ValueError: if an axis is out of bounds, or is named twice.
    """
    if axis is None:
        return tuple(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if not all(-x.ndim <= a < x.ndim for a in axes):
        there = f"has axes {-x.ndim} to {x.ndim - 1}" if x.ndim else "has no axes"
        raise ValueError(f"`{owner}(axis={axis!r})` is out of bounds: `{name}` of shape {x.shape} {there}.")
    axes = tuple(a % x.ndim for a in axes)
    if len(set(axes)) < len(axes):
        raise ValueError(f"`{owner}(axis={axis!r})` names an axis twice: `{name}` has shape {x.shape}.")
    return axes


# `checkify.debug_check` also does nothing outside `checkify`, but it is an effect, and JAX dispatches programs with
# effects on a slow path: milliseconds a step for a model of a few hundred arrays. A primitive that returns its first
# argument has no effect and compiles to nothing.
_checked = Primitive("modulax_checked")


def traced_check(x: Any, ok: Any, message: str) -> Any:
    """Return `x` unchanged, and raise an error with this message if any of `ok` is false.

    Args:
        x: the array to return.
        ok: the condition, for example on `x`. If its value is known (a Python or NumPy boolean), it is checked at once;
            a JAX array is checked only under `checkify.checkify`.
        message: the error message.

    Raises:
        ValueError: if the condition is known to be false.
    """
    if isinstance(ok, jax.Array):
        return _checked.bind(x, jnp.all(ok), message=message)
    if not np.all(ok):
        raise ValueError(message)
    return x


def _as_it_is(x, ok, *, message):
    del ok, message
    return x


def _jvp(primals, tangents, *, message):
    # The check is bound to the value and not to its derivative, in which it would be reported again.
    return _checked.bind(*primals, message=message), tangents[0]


def _batched(operands, axes, *, message):
    x, ok = operands
    return _checked.bind(x, ok if axes[1] is None else jnp.all(ok), message=message), axes[0]


def _under_checkify(*args, message):
    *_, error, enabled_errors, x, ok = args  # JAX 0.12 gives a context first

    def check() -> None:
        checkify.check_error(error)
        checkify.check(ok, message)

    return checkify.checkify(check, enabled_errors)()[0], x


_checked.def_impl(_as_it_is)


_checked.def_abstract_eval(_as_it_is)


mlir.register_lowering(_checked, lambda context, x, ok, *, message: [x])


ad.primitive_jvps[_checked] = _jvp


batching.primitive_batchers[_checked] = _batched


try:
    from jax._src.checkify import error_checks
except ImportError:  # the only private name used here: if JAX moves it, traced values are no longer checked
    pass
else:
    error_checks[_checked] = _under_checkify
