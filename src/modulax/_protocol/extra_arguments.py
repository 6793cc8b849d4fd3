"""Which extra arguments the step of an optimizer reads: those in `needs`, and those of functions of the user."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from .hyperparameters import AbstractHyperparameters
from .transform import AbstractTransform, everything_in, extra_arguments

# A loop may pass these whatever the optimizer is.
USUAL = ("value", "grad", "value_fn", "obj_fn", "grad_fn")
_LIBRARY = __name__.partition(".")[0]


def required_arguments(optimizer: AbstractTransform) -> list[str]:
    """The extra arguments in `needs` of the transforms, stateful schedules and measures of an optimizer."""
    parts = (x for x in _inside(optimizer) if isinstance(x, AbstractHyperparameters) and hasattr(x, "needs"))
    return list(dict.fromkeys(name for part in parts for name in extra_arguments(part)))


def optional_arguments(optimizer: AbstractTransform, given: Mapping[str, Any]) -> tuple[set[str], bool]:
    """The other arguments that functions and classes of the user read by name, and whether one of them takes any.

    Args:
        optimizer: the optimizer.
        given: the extra arguments of the step: a function among them, such as `value_fn`, may take others.
    """
    names, takes_any = set[str](), False
    for x in (*_functions(optimizer), *given.values()):
        try:
            parameters = inspect.signature(x).parameters.values()
        except (TypeError, ValueError):  # no function, or one in C
            continue
        names.update(p.name for p in parameters)
        takes_any = takes_any or any(p.kind is p.VAR_KEYWORD for p in parameters)
    return names, takes_any


def _functions(optimizer: AbstractTransform) -> Iterator[Any]:
    """What an optimizer holds that is not of this library and may be called, and the method `update` of it."""
    for x in _inside(optimizer):
        module = (x if inspect.isroutine(x) else type(x)).__module__ or ""
        if module.partition(".")[0] != _LIBRARY:
            yield from (x, getattr(x, "update", None))


def _inside(optimizer: AbstractTransform) -> Iterator[Any]:
    """The transforms, schedules, measures, functions and other objects that an optimizer is made of."""
    waiting: list[Any] = list(everything_in(optimizer))
    for x in waiting:  # which grows
        if isinstance(x, AbstractHyperparameters):
            waiting += [getattr(x, field.name) for field in dataclasses.fields(x)]
        elif isinstance(x, Mapping):
            waiting += x.values()
        elif type(x) in (tuple, list):
            waiting += x
        if not isinstance(x, type):  # a dtype
            yield x
