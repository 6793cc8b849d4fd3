"""Descriptions: a member of a sweep as text, by which a folder recognizes its sweep, and the first difference."""

import functools
import hashlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .._protocol.transform import AbstractTransform
from .._support.checks import one_line

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
NUMBERS = (bool, int, float, complex, np.ndarray, np.generic, jax.Array)


def described(member: AbstractTransform) -> str:
    """The repr in one line, and the numbers of the functions inside, which a repr does not show.

    These are the numbers of an optax transformation, or of a function that is a schedule: constants in its code, and
    what it closes over. Addresses of functions are left out, because they differ between processes.
    """
    numbers = [_number(np.asarray(x)) for x in _numbers(member, False, set())]
    text = re.sub(r" at 0x[0-9a-f]+", "", one_line(member))
    return f"{text} with {', '.join(numbers)}" if numbers else text


def _number(x: np.ndarray) -> str:
    return repr(x.item()) if x.size == 1 else hashlib.sha256(x.tobytes()).hexdigest()[:16]


def _numbers(x: Any, is_inside: bool, seen: set[int]) -> Iterator[Any]:
    """The numbers inside functions, in a fixed order; `is_inside` tells whether `x` itself is inside one."""
    if isinstance(x, NUMBERS):
        if is_inside:
            yield x
    elif id(x) not in seen:
        seen.add(id(x))
        for part in _parts(x):
            yield from _numbers(part, is_inside or isinstance(x, FUNCTIONS), seen)


def _parts(x: Any) -> Iterable[Any]:
    """The objects that another one holds."""
    match x:
        case types.FunctionType():
            return x.__code__, x.__defaults__, x.__kwdefaults__, *_closed_over(x)
        case types.MethodType():
            return x.__func__, x.__self__
        case functools.partial():
            return x.func, x.args, x.keywords
        case types.CodeType():
            return x.co_consts
        case Mapping():
            return x.values()
        case list() | tuple():
            return x
        case type() | types.ModuleType():
            return ()
    return getattr(x, "__dict__", {}).values()


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is assigned later, or never
            continue


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first name whose values differ, and both values, `"absent"` where there is none; None if all are equal."""
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, "absent"), new.get(name, "absent")
        if a != b:
            return name, a, b
    return None
