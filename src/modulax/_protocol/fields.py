"""How a Module declares its hyperparameters: `number()`, `numbers()`, `choice()`, `followed()`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
from jaxtyping import Array, ArrayLike, Real

from .._support.checks import Requirement
from .hyperparameters import numeric_field
from .schedule import AbstractSchedule, AbstractStatefulSchedule, as_number

if TYPE_CHECKING:
    # A plain union, because pyright rejects arithmetic (`-self.learning_rate`) on jaxtyping's scalar types.
    Number: TypeAlias = float | int | Array
    # A number, a schedule or a plain function of the step: the field's converter decides.
    Hyperparameter: TypeAlias = Any
else:
    Number: TypeAlias = Real[ArrayLike, ""] | AbstractSchedule | AbstractStatefulSchedule
    Hyperparameter: TypeAlias = Number


def number(default: Any = dataclasses.MISSING, *, needs: Requirement | None = None, optional: bool = False) -> Any:
    """A field that holds a hyperparameter: a number, or a schedule.

    Whatever is given becomes a leaf: a Python number a NumPy scalar of JAX's default float dtype, which starts no
    backend, has no weak type and survives donation; a plain function a `WrappedSchedule`. JAX arrays and tracers are
    kept as they are.

    Args:
        default: the field's default, if it has one.
        needs: what the number must be, where a wrong one is certain to be a mistake.
        optional: whether None is a value too, for a part that is left out.
    """
    return numeric_field(as_number, default, needs=needs, optional=optional)


def numbers(
    default: Any = dataclasses.MISSING,
    *,
    needs: Requirement | None = None,
    arranged: Callable[[Any], tuple[Any, ...]] | None = None,
) -> Any:
    """A field that holds a tuple of hyperparameters, each a number or a schedule.

    Args:
        default: the field's default, if it has one. There must be as many numbers as it has.
        needs: what each of the numbers must be.
        arranged: brings what is given into the form that is stored, a tuple of numbers or of tuples of them, and
            refuses what has no such form. There may then be more or fewer numbers than in the default.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"numbers": True, "optional": False, "needs": needs, "arranged": arranged is not None}
    converter = _as_numbers if arranged is None else lambda xs: _as_numbers(arranged(xs))
    return eqx.field(converter=converter, metadata=metadata, **given)


def _as_numbers(xs: Any) -> Any:
    if not isinstance(xs, Iterable):
        return xs
    return tuple(_as_numbers(x) if isinstance(x, tuple) else as_number(x) for x in xs)


def static(default: Any = dataclasses.MISSING, *, converter: Callable[[Any], Any] | None = None) -> Any:
    """Declare a field that is part of the program: another value compiles another program.

    Args:
        default: the field's default, if it has one.
        converter: a function of what is given.
    """
    given = {"default": default, "converter": converter or dataclasses.MISSING}
    given = {name: x for name, x in given.items() if x is not dataclasses.MISSING}
    return eqx.field(static=True, **given)


def choice(options: tuple[str, ...], default: str, *, kw_only: bool = True) -> Any:
    """A field that holds one of some words, and refuses others."""
    return eqx.field(static=True, default=default, kw_only=kw_only, metadata={"options": options})


def followed() -> Any:
    """A field that says whom a class follows where the two differ: the paper, or optax."""
    return choice(("paper", "optax"), "paper")
