"""Error messages for calls and attributes that Python refuses: what was meant, and what to write instead."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.tree_util as jtu

from .checks import listing, suggestion
from .optree_nodes import entry_of


def _vocabulary() -> Any:
    """The words of other libraries, which only an error message needs."""
    return importlib.import_module("modulax._catalog.vocabulary")


def meant_by(word: str, known: Iterable[str]) -> list[str]:
    """The known names that a word from another library may mean: one, two for a pair such as `betas`, or none."""
    known = list(known)
    words = _vocabulary()
    if word in words.PAIRS and set(words.PAIRS[word]) <= set(known):
        return list(words.PAIRS[word])
    return [name for name in known if word in words.WORDS.get(name, "").split()][:1]


def wrong_call(cls: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], hint: str = "") -> str | None:
    """The error message for arguments that a class doesn't take; None if it takes them.

    Args:
        cls: the class, or a function that constructs it.
        args: the arguments by position.
        kwargs: the arguments by name.
        hint: what the class has to say about wrong arguments.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        names = listing(signature.parameters, 20)
        takes = f"Its arguments are {names}." if signature.parameters else "It takes no arguments."
        return " ".join(filter(None, [_fault(cls.__name__, signature.parameters, args, kwargs), takes, hint]))
    return None


def wrong_method_call(
    method: Callable[..., Any], owner: str, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """The error message for missing or surplus arguments of a method; None if it takes them.

    Args:
        method: the method, as a function.
        owner: the name of its class.
        self: the object that it was called on.
        args: the arguments by position.
        kwargs: the arguments by name.
    """
    try:
        inspect.signature(method).bind(self, *args, **{k: x for k, x in kwargs.items() if k != "allow_empty"})
    except TypeError as error:
        parameters = list(inspect.signature(method).parameters.values())[1:]
        call = ", ".join(p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD)
        return f"`{owner}.{method.__name__}`: {error}. Write `optimizer.{method.__name__}({call})`."
    return None


def _fault(
    name: str, parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The sentence about the first of the arguments that the parameters of a class don't take."""
    positional = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if unknown := next((key for key in kwargs if key not in parameters), None):
        return _unknown_argument(name, unknown, list(parameters), args, kwargs)
    if len(args) > len(positional):
        return _surplus_arguments(name, list(parameters), positional, args, kwargs)
    by_position = dict(zip(positional, args, strict=False))
    if twice := next((n for n in by_position if n in kwargs), None):
        return f"`{name}({twice}=...)` was given twice: its position has the value {_text(by_position[twice])} already."
    return _missing_arguments(name, parameters, by_position, args, kwargs)


def _missing_arguments(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    by_position: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str:
    required = [p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    lacking = [n for n in required if n not in by_position and n not in kwargs]
    call = ", ".join([*_written_out(args, kwargs), *(f"{n}=..." for n in lacking)])
    return f"`{name}` needs {listing(lacking)}: write `{name}({call})`."


def _unknown_argument(name: str, key: str, names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    start = f"`{name}({key}=...)`: there is no argument `{key}`."
    if key in _vocabulary().PARAMETERS:
        return f"{start} The parameters are given to `init(params)` and `step(grads, state, params)`."
    if key == "lr_scheduler":
        return f"{start} Give a schedule in place of a number: `{name}(schedules.CosineDecay(1e-3, 1000))`."
    if meant := meant_by(key, names):
        others = _written_out(args, {k: x for k, x in kwargs.items() if k != key})
        return f"{start} Write `{name}({', '.join([*others, _written(meant, kwargs[key])])})`."
    return start + suggestion(key, names)


def _surplus_arguments(
    name: str, names: list[str], positional: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    takes = f"takes {listing(positional)} by position" if positional else "takes no argument by position"
    start = f"`{name}` {takes}, and {len(args)} values were given."
    keywords = {key: x for key, x in zip(names, args, strict=False) if key not in positional and key not in kwargs}
    call = ", ".join(_written_out(args[: len(positional)], keywords))
    return f"{start} Give the others by name, such as `{name}({call})`." if keywords else start


def _written_out(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[str]:
    return [*map(_text, args), *(f"{key}={_text(x)}" for key, x in kwargs.items())]


def _text(x: Any) -> str:
    return repr(x) if isinstance(x, (int, float, str)) else "..."


def _written(names: list[str], value: Any) -> str:
    values = value if len(names) > 1 and isinstance(value, (tuple, list)) else [value] * len(names)
    return ", ".join(f"{n}={_text(x)}" for n, x in zip(names, values, strict=False))


class NoAttributeError(AttributeError):
    """An attribute that a Module doesn't have. The message is written when it is read: `hasattr` costs little."""

    def __init__(self, module: Any, attribute: str):
        # With the name, Python's traceback would add a suggestion of its own.
        super().__init__(name=None, obj=None)
        self.module, self.attribute = module, attribute

    def __str__(self) -> str:
        return no_attribute(self.module, self.attribute)


def no_attribute(module: Any, name: str) -> str:
    """The error message for a missing attribute of a Module: where it has one of this name, or a similar one."""
    owner = type(module).__name__
    start = f"`{owner}` has no attribute `{name}`."
    if found := inside(module, name):
        return f"{start} {found}"
    own = [field.name for field in dataclasses.fields(module)]
    meant = meant_by(name, own)
    return f"{start} It is called `{meant[0]}`." if meant else start + suggestion(name, [*own, *_public(module)])


def _public(module: Any) -> list[str]:
    return [name for name in dir(type(module)) if not name.startswith("_")]


def inside(module: Any, name: str) -> str | None:
    """Say where a Module has a value of this name further inside, and how to read it; None if it has none."""
    found: dict[str, None] = {}
    for path, _ in jtu.tree_leaves_with_path(module):
        names = [str(entry_of(key)) for key in path]
        if name in names:
            found[jtu.keystr(path[: names.index(name) + 1])] = None
    if not found:
        return None
    what, remedy = type(module)._inside_is_read_by(name)
    return f"It has {listing((what + path for path in found), 4)}. {remedy}"
