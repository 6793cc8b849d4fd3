"""A member of a sweep as text, by which a folder knows its sweep again in another process."""

import functools
import hashlib
import re
import types
from collections.abc import Iterator, Mapping
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
        return
    if id(x) in seen:
        return
    seen.add(id(x))
    if isinstance(x, types.FunctionType):
        yield from _numbers(x.__code__, True, seen)
        for part in (*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *_closed_over(x)):
            yield from _numbers(part, True, seen)
    elif isinstance(x, types.CodeType):
        for part in x.co_consts:
            yield from _numbers(part, is_inside, seen)
    elif isinstance(x, types.MethodType):
        yield from _numbers(x.__func__, True, seen)
        yield from _numbers(x.__self__, True, seen)
    elif isinstance(x, functools.partial):
        for part in (x.func, *x.args, *x.keywords.values()):
            yield from _numbers(part, True, seen)
    elif isinstance(x, Mapping):
        for part in x.values():
            yield from _numbers(part, is_inside, seen)
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from _numbers(part, is_inside, seen)
    elif hasattr(x, "__dict__") and not isinstance(x, (type, types.ModuleType)):
        yield from _numbers(vars(x), is_inside, seen)


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that is assigned later, or never
            continue
