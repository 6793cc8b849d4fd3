"""Error messages for calls and attributes that Python refuses: what was meant, and what to write instead."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.tree_util as jtu

from .checks import listing, suggestion
from .optree_nodes import entry_of
from .variables import is_variable


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


def _foreign(words: Mapping[str, str], word: str) -> str | None:
    """What to write for a word of another library."""
    return next((remedy for remedy, known in words.items() if word in known.split()), None)


def foreign_attribute(what: str, name: str) -> str | None:
    """What to write for an attribute that other libraries have; None if it is not known.

    Args:
        what: what the object is: `"optimizer"`, `"state"`, `"schedule"` or `"nnx"`.
        name: the attribute.
    """
    return _foreign(_vocabulary().ATTRIBUTES.get(what, {}), name)


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
        return f"`{owner}.{method.__name__}`: {error}. Write `optimizer.{call_of(method)}`."
    return None


def call_of(function: Callable[..., Any]) -> str:
    """The call of a function or a method with the names of its required arguments; `**changes` of `name=...`."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    is_open = not required and any(p.kind is p.VAR_KEYWORD for p in parameters)
    return f"{function.__name__}({'learning_rate=...' if is_open else ', '.join(required)})"


def wrong_function_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The error message for missing or surplus arguments of a function; None if it takes them.

    Args:
        function: the function.
        args: the arguments by position.
        kwargs: the arguments by name.
    """
    signature, name = inspect.signature(function), function.__name__
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = signature.bind_partial(*args[: len(signature.parameters)]).arguments
        here = ", ".join(f"`{key}` is {_what(x)}" for key, x in given.items() if not hasattr(x, "each_part"))
        return f"`{name}`: {error}. Write `{call_of(function)}`.{f' In this call, {here}.' if here else ''}"
    return None


def _what(x: Any) -> str:
    return f"`{x!r}`" if isinstance(x, (int, float, str)) else f"a `{type(x).__name__}`"


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
    others = _written_out(args, {k: x for k, x in kwargs.items() if k != key})
    if meant := meant_by(key, names):
        return f"{start} Write `{name}({', '.join([*others, _written(meant, kwargs[key])])})`."
    if "learning_rate" in names and (remedy := _foreign(_vocabulary().ARGUMENTS, key)):
        rest = ", ".join(others)
        return f"{start} {remedy.format(call=f'{name}({rest})', name=name, rest=rest, value=_text(kwargs[key]))}"
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
    if meant := meant_by(name, own):
        return f"{start} It is called {listing(meant)}."
    if remedy := foreign_attribute(module._inside_is_read_by(name)[0], name):
        return f"{start} {remedy}"
    if found := next(filter(None, (inside(module, x) for x in meant_by(name, _vocabulary().WORDS))), None):
        return f"{start} {found}"
    return start + suggestion(name, [*own, *_public(module)])


def _public(module: Any) -> list[str]:
    return [name for name in dir(type(module)) if not name.startswith("_")]


def inside(module: Any, name: str) -> str | None:
    """Say where a Module has a value of this name further inside, and how to read it; None if it has none."""
    found: dict[str, None] = {}
    is_number = False
    of_nnx = False
    for path, leaf in jtu.tree_leaves_with_path(module, is_leaf=is_variable):
        names = [str(entry_of(key)) for key in path]
        if name in names:
            found[jtu.keystr(path[: names.index(name) + 1])] = None
            is_number = is_number or names[-1] == name
            of_nnx = of_nnx or is_variable(leaf)
    if not found:
        return None
    what, remedy = type(module)._inside_is_read_by(name)
    if of_nnx:
        what, remedy = "optimizer.hyperparameters", "Its value is read and assigned by `[...]`."
    elif what == "optimizer" and not is_number:  # a part
        remedy = f"Change it with `replace({name}=...)`."
    return f"It has {listing((what + path for path in found), 4)}. {remedy}"


def swapped_part(cls: Any, args: tuple[Any, ...]) -> str | None:
    """The error message for a container that did not get its transform first; None if it did."""
    first = next(iter(dataclasses.fields(cls)), None)
    is_part = first is not None and "part" in first.metadata
    if not is_part or hasattr(args[0], "each_part") or not any(hasattr(x, "each_part") for x in args[1:]):
        return None
    call = call_of(cls).replace("_ModuleType", cls.__name__)
    return f"`{cls.__name__}` was given its arguments in another order: write `{call}`."
