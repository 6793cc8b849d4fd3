"""Declarations of the fields of transforms: `number()`, `numbers()`, `static()`, `choice()`, `followed()`.

A required field is declared with `required_number()`, `required_numbers()` or `equinox.field(static=True)`. `number()`
itself is in `schedule.py`, whose schedules have such fields.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._support.checks import Requirement
from .._support.types import ScheduleFunction
from .schedule import AbstractSchedule, AbstractStatefulSchedule, as_number, number as number

if TYPE_CHECKING:
    # Type checkers take the value of any other function for a default, and would accept `AdamW()`. Equinox registers
    # `field` as a field specifier, and mypy follows an import to it, but not an assignment.
    from equinox import field as required_number, field as required_numbers

    ScalarOrSchedule: TypeAlias = (
        float | Array | AbstractSchedule | AbstractStatefulSchedule | ScheduleFunction | np.ndarray | np.number
    )

    # A constructor takes more types than the field then holds. Type checkers read the type of the argument from
    # `__set__`, and the type of the attribute from `__get__`. At run time the field is an ordinary one.
    class Number:
        # Any, because both `float(optimizer.learning_rate)` and `optimizer.learning_rate.peak_value` must pass.
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...
        def __set__(self, instance: Any, value: ScalarOrSchedule) -> None: ...

    Hyperparameter: TypeAlias = Number

    class OptionalNumber:
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...
        def __set__(self, instance: Any, value: ScalarOrSchedule | None) -> None: ...

    class Numbers:
        def __get__(self, instance: Any, owner: Any = None) -> tuple[Array, ...]: ...
        def __set__(self, instance: Any, value: Iterable[ScalarOrSchedule]) -> None: ...

else:
    Number: TypeAlias = Real[ArrayLike, ""] | AbstractSchedule | AbstractStatefulSchedule
    Hyperparameter: TypeAlias = Number
    OptionalNumber: TypeAlias = Number | None
    Numbers: TypeAlias = tuple[Number, ...]
    ScalarOrSchedule: TypeAlias = Number | ScheduleFunction

    def required_number(*, needs: Requirement | None = None, optional: bool = False) -> Any:
        """Declare a required field that holds a hyperparameter, as `number()` does for a field with a default.

        pyright and mypy report a constructor call without it.

        Args:
            needs: requirement on the number; values that violate it are certainly mistakes.
            optional: whether None is allowed, for a piece of the algorithm that can be left out.
        """
        return number(needs=needs, optional=optional)

    def required_numbers(
        *,
        needs: Requirement | None = None,
        arranged: Callable[[Any], tuple[Any, ...] | dict[str, Any]] | None = None,
    ) -> Any:
        """Declare a required field that holds a tuple of hyperparameters; see `numbers()`."""
        return numbers(needs=needs, arranged=arranged)


def numbers(
    default: Any = dataclasses.MISSING,
    *,
    needs: Requirement | None = None,
    arranged: Callable[[Any], tuple[Any, ...] | dict[str, Any]] | None = None,
) -> Any:
    """Declare a field that holds a tuple of hyperparameters, each a number or a schedule.

    Args:
        default: default value of the field, if it has one; a given tuple must have the same length.
        needs: requirement on each of the numbers.
        arranged: function that converts the given value to a tuple of numbers, or of tuples of numbers, or to a dict of
            numbers, and raises an error if it can't. The length may then differ from that of the default.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"numbers": True, "optional": False, "needs": needs, "arranged": arranged is not None}
    # In the converter, so that `replace` accepts the same forms as the constructor.
    converter = _as_numbers if arranged is None else lambda xs: _as_numbers(arranged(xs))
    return eqx.field(converter=converter, metadata=metadata, **given)


def _as_numbers(xs: Any) -> Any:
    if isinstance(xs, dict):
        return type(xs)((name, as_number(x)) for name, x in xs.items())
    if not isinstance(xs, Iterable):
        return xs
    return tuple(_as_numbers(x) if isinstance(x, tuple) else as_number(x) for x in xs)


def static(default: Any, *, least: int | None = None, converter: Callable[[Any], Any] | None = None) -> Any:
    """Declare a field that is compiled into the program, such as a flag, a size or a dtype.

    Write `equinox.field(static=True)` for one without a default.

    Args:
        default: default value of the field.
        least: the least integer that is accepted.
        converter: function that converts what the constructor is given.
    """
    given = {} if converter is None else {"converter": converter}
    return eqx.field(static=True, default=default, metadata={} if least is None else {"least": least}, **given)


def choice(options: tuple[str, ...], default: str, *, kw_only: bool = True) -> Any:
    """Declare a static field that holds one of several strings; any other value is an error."""
    return eqx.field(static=True, default=default, kw_only=kw_only, metadata={"options": options})


def followed(*sources: str) -> Any:
    """Declare a field that selects whose algorithm a class computes, where its sources differ.

    Args:
        sources: the names that the field accepts, the default first; by default `"paper"` and `"optax"`. `"reference"`
            is the authors' released code.
    """
    options = sources or ("paper", "optax")
    return choice(options, options[0])
