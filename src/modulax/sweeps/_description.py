"""A member of a sweep as text, by which a folder knows its sweep again in another process."""

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
        parts, are_of_function = _parts(x)
        for part in parts:
            yield from _numbers(part, is_inside or are_of_function, seen)


def _parts(x: Any) -> tuple[Iterable[Any], bool]:
    """What an object holds, and whether a function holds it."""
    match x:
        case types.FunctionType():
            return (x.__code__, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *_closed_over(x)), True
        case types.MethodType():
            return (x.__func__, x.__self__), True
        case functools.partial():
            return (x.func, *x.args, *x.keywords.values()), True
        case types.CodeType():
            return x.co_consts, False
        case Mapping():
            return x.values(), False
        case list() | tuple():
            return x, False
        case type() | types.ModuleType():
            return (), False
    return vars(x).values() if hasattr(x, "__dict__") else (), False


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is assigned later, or never
            continue
