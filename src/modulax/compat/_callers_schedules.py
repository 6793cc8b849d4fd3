"""Functions of the caller that are schedules and read what may change, such as the epoch in an object.

optax calls a schedule at every step, so that outside of `jit` it follows the object. A compiled program would not.
"""

import dataclasses
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.tree_util as jtu
import numpy as np

from .._plugin.transforms import wraps_function
from ..schedules import AbstractSchedule, WrappedSchedule

# Libraries whose functions read nothing that changes: that of pytest is in functions with an `assert`.
_LIBRARIES = {"_pytest", "builtins", "chex", "equinox", "jax", "jaxlib", "math", "modulax", "numpy"}
_VALUES = (int, float, complex, str, bytes, type(None), type(...), np.generic)
_CHANGES = object()  # in the place of what may change by itself
_same = functools.partial(types.MethodType, type)  # equal for the same object only, as methods are


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


@dataclasses.dataclass(frozen=True)
class Reading:
    """A function of the caller, and what it reads: a program that is compiled with it belongs to these values.

    Attributes:
        function: the function.
        values: what it reads.
    """

    function: Callable[..., Any]
    values: tuple[Any, ...]

    def __call__(self, step: Any) -> Any:
        """Return the value of the function at a step."""
        return self.function(step)

    def has_changed(self) -> bool:
        """Whether the function reads other values now, such as a global number that was set since."""
        return self.values != tuple(_read_by(self.function))


def with_callers_schedules(transform: Any, compiled: list[Reading] | None) -> Any:
    """The transform with functions that may change called at every step; itself if it has no functions.

    Args:
        transform: the transform.
        compiled: takes the functions that are not called at every step; None to call all of them.
    """

    def converted(x: Any) -> Any:
        if not wraps_function(x):
            return x
        reading = Reading(x.function, tuple(_read_by(x.function)))
        if compiled is None or _CHANGES in reading.values:
            return CallersSchedule(x)
        compiled.append(reading)
        return WrappedSchedule(reading)

    leaves, treedef = jtu.tree_flatten(transform, is_leaf=wraps_function)
    return treedef.unflatten(map(converted, leaves)) if any(map(wraps_function, leaves)) else transform


@functools.cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals and attributes in a function, and in the functions within it."""
    inside = [_names(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return tuple(itertools.chain(code.co_names, *inside))


def _read_by(x: Any, names: tuple[str, ...] = (), seen: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """What a value consists of: numbers, functions and classes; `_CHANGES` for an object that may change by itself.

    Args:
        x: the value.
        names: the names in the code that reads it, among them those of the attributes of a module or a class.
        seen: what it is read within.
    """
    if (key := (id(x), names)) in seen:
        return
    own, within, names = _taken_apart(x, names)
    yield from own
    for y in within:
        yield from _read_by(y, names, seen | {key})


def _taken_apart(x: Any, names: tuple[str, ...]) -> tuple[list[Any], list[Any], tuple[str, ...]]:
    """What tells a value from others, what it reads in turn, and the names in the code that reads this."""
    schedule = getattr(x, "schedule", x)  # of a function that `modulax.compat` has made
    if isinstance(x, _VALUES):
        return [x], [], names
    if isinstance(x, tuple):
        return [], [*x], names
    if isinstance(x, functools.partial):
        return [], [x.func, *x.args, *x.keywords.values()], names
    if isinstance(schedule, (AbstractSchedule, jax.Array, np.dtype)):
        wrapped = filter(wraps_function, jtu.tree_leaves(schedule, is_leaf=wraps_function))
        return [_same(schedule)], [y.function for y in wrapped], names
    if _home(x).partition(".")[0] in _LIBRARIES:
        return [_CHANGES if isinstance(x, (dict, list, set, bytearray, np.ndarray)) else x], [], names
    if isinstance(x, (types.ModuleType, type)):
        return [x], _attributes(x, names), names
    function = getattr(x, "__wrapped__", x)  # by `jax.jit`
    return _read_by_function(function) if isinstance(function, types.FunctionType) else ([_CHANGES], [], names)


def _home(x: Any) -> str:
    """The name of the module that a value is from."""
    return x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None) or type(x).__module__


def _attributes(x: Any, names: tuple[str, ...]) -> list[Any]:
    """The attributes of a module or a class that have one of the names; none of Python's own."""
    names = () if _home(x) in sys.stdlib_module_names else names
    return [vars(y)[name] for y in getattr(x, "__mro__", (x,)) for name in names if name in vars(y)]


def _read_by_function(function: types.FunctionType) -> tuple[list[Any], list[Any], tuple[str, ...]]:
    names = _names(function.__code__)
    within = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    within += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [function], within + [function.__globals__[name] for name in names if name in function.__globals__], names
