"""The tests, and the type checker that every annotation of modulax meets while they run."""

import functools
import inspect
import typing
from typing import Any

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype

# jaxtyping decorates methods one by one, where beartype cannot know what `Self` is; pyright does.
typechecked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any})))


_jaxtyped: Any = jaxtyping.jaxtyped


def _jaxtyped_unless_local(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, as its import hook calls it, for all but the functions inside of functions.

    Those would be decorated anew at every call of the function around them, which took an eighth of the time of all
    tests.
    """
    if function is None:
        return functools.partial(_jaxtyped_unless_local, typechecker=typechecker)
    if inspect.isfunction(function) and "<locals>" in function.__qualname__:
        return function
    return _jaxtyped(function, typechecker=typechecker)


jaxtyping.jaxtyped = _jaxtyped_unless_local
