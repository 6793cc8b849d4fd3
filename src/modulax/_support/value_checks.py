"""Checks of array values, reported only under `checkify` and free otherwise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

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
