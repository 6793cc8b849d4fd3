"""Argument checks and error messages: what went wrong, what was expected, and the call that works."""

import contextlib
import contextvars
import dataclasses
import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def listing(items: Iterable[Any], limit: int = 12) -> str:
    """List items in backticks for an error message, shortened after `limit` items."""
    items = [f"`{item}`" for item in items]
    more = f", and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more if items else "none"


def one_line(value: Any) -> str:
    """The repr of a value, which may have several lines, in one."""
    return " ".join(repr(value).split())


def brief(value: Any, most: int = 200) -> str:
    """The repr of a value in one line, cut after some characters."""
    text = one_line(value)
    return text if len(text) <= most else text[:most] + " ..."


def suggestion(word: str, possibilities: Sequence[str]) -> str:
    """Return " Did you mean ...?" with the closest possibility, or an empty string if none is close."""
    by_plain: dict[str, str] = {}
    for name in possibilities:
        by_plain.setdefault(name.replace("_", "").lower(), name)
    word = word.replace("_", "").lower()
    close = difflib.get_close_matches(word, by_plain, n=1, cutoff=0.7)
    near = difflib.get_close_matches(word, by_plain, n=1, cutoff=0.88)  # a letter too many
    begins = [name for name in by_plain if len(word) > 2 and name.startswith(word)]
    match = by_plain[word] if word in by_plain else next((by_plain[x] for x in (*near, *begins, *close)), None)
    return f" Did you mean `{match}`?" if match else ""


def check_option(owner: str, name: str, value: Any, options: Sequence[Any]) -> None:
    """Raise an error if an argument is not one of the options."""
    if value not in options:
        close = suggestion(value, [*map(str, options)]) if isinstance(value, str) else ""
        raise ValueError(f"`{owner}({name}=...)` must be one of {listing(map(repr, options))}, got {value!r}.{close}")


def check_extra(what: str, needs: Sequence[str], extra: Mapping[str, Any]) -> None:
    """Raise an error if a required extra argument of `update` is missing, or if the loss is not a scalar."""
    if lacking := [argument for argument in needs if extra.get(argument) is None]:
        call = ", ".join(f"{argument}=..." for argument in needs)
        other = next((f" It is called so here, and not `{word}`." for word in extra if "loss" in word), "")
        raise ValueError(
            f"{what} needs `{lacking[0]}`: call `update(updates, state, params, {call})` or "
            f"`step(grads, state, params, {call})`; with NNX, `update(model, grads, {call})`.{other}"
        )
    if "value" in needs and (shape := np.shape(extra["value"])):
        raise ValueError(
            f"{what} needs a scalar `value`, the loss, and got an array of shape {shape}. Give its mean or its sum, as "
            f"the gradients are computed from it."
        )


def options_of(field: dataclasses.Field) -> tuple[Any, ...]:
    """The values that a static field may have, from its metadata or its type; empty if there is no such list."""
    return field.metadata.get("options") or (get_args(field.type) if get_origin(field.type) is Literal else ())


def check_setting(owner: object, field: dataclasses.Field) -> None:
    """Raise an error if the value of a static field is none of its options, not a dtype, or too small an integer.

    The metadata of the field name the `least` integer, such as a number of iterations. A field that is None by default
    may be None.
    """
    name, value, is_static = type(owner).__name__, getattr(owner, field.name), field.metadata.get("static")
    call, hint = f"`{name}({field.name}=...)`", getattr(type(owner), "_call_hint", "")
    if options := options_of(field):
        check_option(name, field.name, value, options)
    if is_static and field.name.endswith("dtype"):
        _check_dtype(call, value)
    if is_static and field.type is bool and not isinstance(value, (bool, np.bool_)):
        order = listing(x.name for x in dataclasses.fields(owner))  # pyright: ignore[reportArgumentType] (a dataclass)
        raise ValueError(f"{call} must be True or False, got {value!r}. The arguments are {order}. {hint}".rstrip())
    if get_origin(field.type) is Callable and not callable(value):
        raise ValueError(f"{call} must be a function, got {brief(value)}. {hint}".strip())
    if (least := field.metadata.get("least")) is not None:
        _check_least(name, field, value, least)


def _check_dtype(call: str, value: Any) -> None:
    try:
        jnp.dtype(value)
    except TypeError as error:
        raise ValueError(f'{call} must be a dtype, such as `jnp.bfloat16` or "float32", got {value!r}.') from error


def _check_least(owner: str, field: dataclasses.Field, value: Any, least: int) -> None:
    if value is not None or field.default is not None:
        reason = getattr(value, "_why_not_a_number", str)()  # of a transform, for example
        check_integer(owner, field.name, value, least, reason and f" {reason}")


def check_integer(owner: str, name: str, value: Any, least: int = 1, hint: str = "") -> None:
    """Raise an error if an argument is not an integer, or is smaller than `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        needed = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"`{owner}({name}=...)` must be {needed}, got {brief(value)}.{hint}")


class Requirement(NamedTuple):
    """A requirement on a hyperparameter: a predicate on arrays, its wording in messages, and the least whole number.

    With `only_here`, optax does not ask for it, and computes with any number what the class here computes. `check` asks
    whether a number outside the `usual` range was meant.
    """

    is_met_by: Callable[[Any], Any]
    words: str
    least: int | None = None
    only_here: bool = False
    usual: tuple[float, float] | None = None


DECAY = Requirement(lambda x: (x >= 0) & (x < 1), "must be in [0, 1)", only_here=True)


PROPER_FRACTION = Requirement(lambda x: (x > 0) & (x < 1), "must be between 0 and 1")


FRACTION = Requirement(lambda x: (x >= 0) & (x <= 1), "must be in [0, 1]")


NON_NEGATIVE = Requirement(lambda x: x >= 0, "must not be negative", only_here=True)
NEVER_NEGATIVE = NON_NEGATIVE._replace(only_here=False)


POSITIVE = Requirement(lambda x: x > 0, "must be positive")


AT_LEAST_ONE = Requirement(lambda x: x >= 1, "must be at least 1")
WHOLE = Requirement(lambda x: (x >= 1) & (x == x.round()), "must be a whole number of at least 1", 1)
WHOLE_OR_ZERO = Requirement(lambda x: (x >= 0) & (x == x.round()), "must be a whole number of at least 0", 0, True)
# What was met outside its range, within `any_range`.
_met = contextvars.ContextVar[dict[str, None] | None]("_met", default=None)


@contextlib.contextmanager
def any_range(*, warns: bool = False) -> Iterator[None]:
    """In the block, accept numbers outside a range that optax does not ask for.

    Args:
        warns: whether to warn of them, in the line that called the function with the block.
    """
    around = _met.get()
    token = _met.set(found := {} if around is None or not warns else around)
    try:
        yield
    finally:
        _met.reset(token)
    for message in found if warns and around is None else ():
        warnings.warn(message, stacklevel=4)


def accepts_any_range() -> bool:
    """Whether this is within `any_range`."""
    return _met.get() is not None


def require(call: str, value: Any, requirement: Requirement, *, deferred: bool) -> Any:
    """Return a hyperparameter if it fulfils a requirement, else raise an error.

    A concrete value is checked at once. A traced value is checked when the program runs, if `deferred`, else not at
    all.
    """
    met = _met.get() if requirement.only_here else None
    if isinstance(value, Tracer):
        broken = jnp.logical_not(requirement.is_met_by(value))
        return eqx.error_if(value, broken, f"{call} {requirement.words}.") if deferred and met is None else value
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and not np.all(requirement.is_met_by(np.asarray(value))):
        hint = "" if requirement.least is None else f" Write {np.fmax(np.rint(value), requirement.least):.0f}."
        message = f"{call} {requirement.words}, got {np.asarray(value)[()]!s}."
        if met is None:
            raise ValueError(message + hint)
        met[f"{message} It is accepted, as in optax."] = None
    return value


def boolean(call: str, value: Any, beside: str = "") -> Any:
    """Convert the result of a user's predicate to an array; raise an error unless it is a boolean scalar.

    Args:
        call: the argument in which the function was given, for the error message.
        value: the result of the function.
        beside: text of the error message for anything else that it must return.
    """
    value = jnp.asarray(value)
    if value.shape != () or value.dtype != bool:
        raise ValueError(
            f"{call} must return a boolean scalar{beside}, got an array of shape {value.shape} and dtype {value.dtype}."
        )
    return value
