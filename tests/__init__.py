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
# Says nothing that a check could refuse.
_ANYTHING = (Any, inspect.Parameter.empty, jaxtyping.PyTree)


def _jaxtyped_where_it_counts(function: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, as its import hook calls it, for functions whose annotations speak of arrays.

    It binds the arguments of every call and has them checked twice, since axes with names are to agree. Where no array
    is annotated beartype by itself checks the same in a twentieth of the time, and where nothing is annotated but
    `Any` there is nothing to check. Functions inside functions are not decorated: they would be anew at every call of
    the function around them. Together this was a quarter of the time of all tests.
    """
    if function is None:
        return functools.partial(_jaxtyped_where_it_counts, typechecker=typechecker)
    if not inspect.isfunction(function):
        return _jaxtyped(function, typechecker=typechecker)
    hints = _hints(function)
    if "<locals>" in function.__qualname__ or all(hint in _ANYTHING for hint in hints):
        return function
    is_plain = not any(map(_speaks_of_arrays, hints))
    return typechecker(function) if is_plain else _jaxtyped(function, typechecker=typechecker)


def _hints(function: Any) -> list[Any]:
    signature = inspect.signature(function)
    return [*(p.annotation for p in signature.parameters.values()), signature.return_annotation]


def _speaks_of_arrays(hint: Any) -> bool:
    """Whether jaxtyping has to look at it; also where a string hides what it is."""
    if isinstance(hint, str | typing.ForwardRef):
        return True
    is_jaxtyping = getattr(hint, "__module__", "").startswith("jaxtyping") and hint is not jaxtyping.PyTree
    inside = hint if isinstance(hint, list | tuple) else typing.get_args(hint)
    return is_jaxtyping or (typing.get_origin(hint) is not typing.Literal and any(map(_speaks_of_arrays, inside)))


jaxtyping.jaxtyped = _jaxtyped_where_it_counts
