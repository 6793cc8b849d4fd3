"""Functions of the caller that are schedules and read what may change, such as the epoch in an object.

optax calls a schedule at every step, so that outside of `jit` it follows the object. A compiled program would not.
"""

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.tree_util as jtu
import numpy as np

from .._protocol.schedule import AbstractSchedule, wraps_function

_LIBRARIES = {"builtins", "equinox", "jax", "jaxlib", "math", "modulax", "numpy"}  # whose functions change nothing
_VALUES = (int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype, jax.Array, type)


class CallersSchedule(AbstractSchedule):
    """A function of the caller as a schedule that is called at every step, as in optax.

    A transform that has one is compiled under the caller's `jit` only.

    Args:
        schedule: the function, as a schedule that would be compiled.
    """

    runs_as_python: ClassVar[bool] = True

    schedule: AbstractSchedule

    def __call__(self, step: Any) -> Any:
        """Return the value of the function at a step, in JAX's default float dtype."""
        return self.schedule(step)


def with_callers_schedules(transform: Any) -> Any:
    """The transform with functions that may change called at every step; itself if there are none."""
    leaves, treedef = jtu.tree_flatten(transform, is_leaf=_changes)
    if not any(map(_changes, leaves)):
        return transform
    return treedef.unflatten([CallersSchedule(x) if _changes(x) else x for x in leaves])


def _changes(x: Any) -> bool:
    return wraps_function(x) and not _is_fixed(x.function, set())


def _is_fixed(x: Any, seen: set[int]) -> bool:
    """Whether a value stays what it is: a number, an array of JAX, or a function that reads only such values."""
    if isinstance(x, (*_VALUES, types.ModuleType)) or id(x) in seen:
        return True
    seen.add(id(x))
    if isinstance(x, tuple):
        return all(_is_fixed(y, seen) for y in x)
    if isinstance(x, functools.partial):
        return all(_is_fixed(y, seen) for y in (x.func, x.args, tuple(x.keywords.values())))
    schedule = getattr(x, "schedule", x)  # of a function that `modulax.compat` has made
    if isinstance(schedule, AbstractSchedule):
        return not any(map(_changes, jtu.tree_leaves(schedule, is_leaf=_changes)))
    if (getattr(x, "__module__", None) or type(x).__module__).partition(".")[0] in _LIBRARIES:
        return not isinstance(x, (dict, list, set, bytearray, np.ndarray))
    x = getattr(x, "__wrapped__", x)  # by `jax.jit`
    return isinstance(x, types.FunctionType) and all(_is_fixed(y, seen) for y in _read_by(x))


def _read_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function has from elsewhere than its arguments."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__)
