"""Checks of values, which cost nothing unless somebody asks for them with `checkify`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# `checkify.debug_check` does nothing either, but it is an effect: JAX calls every program that has one by a slow path,
# which takes milliseconds a step for a model of a few hundred arrays. A primitive that returns its first argument has
# no effect, and is nothing at all once it is compiled.
_checked = Primitive("modulax_checked")


def checked(x: Any, ok: Any, message: str) -> Any:
    """The array as it is; an error with this message if any of `ok` is false.

    At once if that is known, as it is of Python's numbers and of NumPy's arrays; if it is an array of JAX, only under
    `checkify.checkify`.
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
    return _checked.bind(*primals, message=message), tangents[0]


def _batched(operands, axes, *, message):
    x, ok = operands
    return _checked.bind(x, ok if axes[1] is None else jnp.all(ok), message=message), axes[0]


def _under_checkify(error, enabled_errors, x, ok, *, message):
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
except ImportError:  # the only name here that JAX does not promise: without it, nothing is checked
    pass
else:
    error_checks[_checked] = _under_checkify
