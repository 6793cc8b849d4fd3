"""The tests, and the type checker that every annotation of modulax meets while they run."""

import functools
import inspect
import os
import typing
from typing import Any

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype

# jaxtyping decorates methods one by one, where beartype cannot know what `Self` is; pyright does.
typechecked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any})))


_jaxtyped: Any = jaxtyping.jaxtyped
# Annotations that accept anything.
_ANYTHING = (Any, inspect.Parameter.empty, jaxtyping.PyTree)


def _jaxtyped_where_it_counts(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, as its import hook calls it, for functions with annotated arrays.

    `jaxtyped` binds the arguments of every call and checks them twice, because named axes must agree. Without annotated
    arrays, beartype alone checks the same much faster; where every annotation accepts anything, there is nothing to
    check. Local functions are not decorated: the decorator would run at every call of the function around them.
    Decorating everything took a quarter of the time of all tests.
    """
    if function is None:
        return functools.partial(_jaxtyped_where_it_counts, typechecker=typechecker)
    if not inspect.isfunction(function):
        return _jaxtyped(function, typechecker=typechecker)
    if "<locals>" in function.__qualname__:
        return function
    hints = _hints(function)
    if all(hint in _ANYTHING for hint in hints):
        return function
    is_plain = not any(map(_speaks_of_arrays, hints))
    check = typechecker if is_plain else functools.partial(_jaxtyped, typechecker=typechecker)
    return _often_enough(function, check)


_EVERY = 1 if os.environ.get("MODULAX_LAWS") == "all" else 64


def _often_enough(function: Any, check: Any) -> Any:
    """Check the first 50 calls of a function in a process, and then one in 64: every call took a seventh of the time.

    The checks are compiled at the first call: those of all functions took a fifth of the time of collecting the tests.
    As `jaxtyping.jaxtyped` does, go by `jaxtyping.config`: tests of our own error messages switch the checks off.
    """
    count, checked = 0, None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal count, checked
        count += 1
        if (count > 50 and count % _EVERY) or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if checked is None:
            checked = function  # while the check is made, which may import, and so call the finder of modules
            checked = check(function)
        return checked(*args, **kwargs)

    return call


def _hints(function: Any) -> list[Any]:
    signature = inspect.signature(function)
    return [*(p.annotation for p in signature.parameters.values()), signature.return_annotation]


def _speaks_of_arrays(hint: Any) -> bool:
    """Whether jaxtyping checks it. A string may name anything."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    is_jaxtyping = getattr(hint, "__module__", "").startswith("jaxtyping") and hint is not jaxtyping.PyTree
    inside = hint if isinstance(hint, list | tuple) else typing.get_args(hint)
    return is_jaxtyping or (typing.get_origin(hint) is not typing.Literal and any(map(_speaks_of_arrays, inside)))


jaxtyping.jaxtyped = _jaxtyped_where_it_counts
