"""Error messages for calls and attributes that Python refuses: what was meant, and what to write instead."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.tree_util as jtu

from .checks import listing, suggestion
from .optree_nodes import entry_of
from .slots import vocabulary
from .variables import is_variable


def meant_by(word: str, known: Iterable[str] | None = None) -> list[str]:
    """The known names that a word from another library may mean: one, several for `betas`, or none."""
    words = vocabulary.module
    known = list(words.WORDS if known is None else known)
    if len(several := [name for name in words.SEVERAL.get(word, ()) if name in known]) > 1:
        return several
    fitting = [name for name in known if word in words.WORDS.get(name, "").split()]
    alike = [name for name in fitting if not {*words.NOT_BESIDE.get(name, "").split()} & {*known}]
    head, _, tail = word.partition("_")
    prefix = f"{words.PREFIXES.get(head, head)}_"
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    of_part = [prefix + name for name in ([tail] if tail in inside else meant_by(tail, inside))] if tail else []
    return [word] if word in known else alike[:1] or of_part


def _foreign(words: Mapping[str, str], word: str) -> str | None:
    """What to write for a word of another library."""
    return next((remedy for remedy, known in words.items() if word in known.split()), None)


def foreign_attribute(what: str, name: str) -> str | None:
    """What to write for an attribute that other libraries have; None if it is not known.

    Args:
        what: what the object is: `"optimizer"`, `"state"`, `"schedule"` or `"nnx"`.
        name: the attribute.
    """
    return _foreign(vocabulary.module.ATTRIBUTES.get(what, {}), name)


def wrong_call(cls: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], hint: str = "") -> str | None:
    """The error message for arguments that a class doesn't take; None if it takes them.

    Args:
        cls: the class, or a function that constructs it.
        args: the arguments by position.
        kwargs: the arguments by name.
        hint: what the class has to say about wrong arguments.
    """
    call = _Call(cls, args, kwargs)
    if (fault := call.fault()) is None:
        return None
    takes = f"Its arguments are {listing(call.parameters, 20)}." if call.parameters else "It takes no arguments."
    return " ".join(filter(None, [fault, takes, hint]))


def call_of(function: Callable[..., Any]) -> str:
    """The call of a function or a method with the names of its required arguments; `**changes` of `name=...`."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    is_open = not required and any(p.kind is p.VAR_KEYWORD for p in parameters)
    return f"{_name_of(function)}({'learning_rate=...' if is_open else ', '.join(required)})"


def _name_of(function: Callable[..., Any]) -> str:
    """The name by which a function is called: the class of a constructor."""
    return function.__qualname__.split(".")[-2] if function.__name__ == "__init__" else function.__name__


def wrong_function_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The error message for missing or surplus arguments of a function; None if it takes them.

    Args:
        function: the function.
        args: the arguments by position.
        kwargs: the arguments by name.
    """
    signature = inspect.signature(function)
    # Python 3.13.0 takes the names of positional-only parameters as those of `**kwargs`, and misses no argument then.
    left_out = {"allow_empty", *(p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY)}
    try:
        signature.bind(*args, **{key: x for key, x in kwargs.items() if key not in left_out})
    except TypeError as error:
        names = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        if names[0] == "self" and function.__name__ != "__init__":
            return f"`{type(args[0]).__name__}.{function.__name__}`: {error}. Write `optimizer.{call_of(function)}`."
        given = [(name, x) for name, x in zip(names, args, strict=False) if not hasattr(x, "each_part")]
        here = ", ".join(f"`{name}` is {_what(x)}" for name, x in given if name != "self")
        start = f"`{_name_of(function)}`: {error}. Write `{call_of(function)}`."
        return f"{start} In this call, {here}." if here else start
    return None


def _what(x: Any) -> str:
    return f"`{x!r}`" if isinstance(x, (int, float, str)) else f"a `{type(x).__name__}`"


class _Call:
    """A call of a class: what is wrong with its arguments, and the call to write, which the class takes."""

    def __init__(self, cls: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]):
        self.cls, self.args, self.kwargs = cls, list(args), dict(kwargs)
        self.name, self.signature = cls.__name__, inspect.signature(cls)
        self.parameters = self.signature.parameters
        self.positional = [p.name for p in self.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        self.is_optimizer = "learning_rate" in self.parameters

    def __str__(self) -> str:
        named = (f"{key}={_text(x)}" for key, x in self.kwargs.items())
        return f"{self.name}({', '.join([*map(_text, self.args), *named])})"

    def fault(self) -> str | None:
        """What is wrong with the first of the arguments that the class doesn't take, and what to write."""
        try:
            self.signature.bind(*self.args, **self.kwargs)
        except TypeError:
            if unknown := [key for key in self.kwargs if key not in self.parameters]:
                return self._unknown_arguments(unknown[0])
            if len(self.args) > len(self.positional):
                return self._surplus_arguments()
            if twice := [pair for pair in zip(self.positional, self.args, strict=False) if pair[0] in self.kwargs]:
                name, x = twice[0]
                return f"`{self.name}({name}=...)` was given twice: its position has {_what(x)} already."
            call = self._completed(self.args, self.kwargs)
            return f"`{self.name}` needs {listing(x for x in call.kwargs if x not in self.kwargs)}: write `{call}`."
        return None

    def _completed(self, args: list[Any], kwargs: dict[str, Any]) -> "_Call":
        """The call with these arguments, and `...` for the required ones that are not given."""
        required = [p.name for p in self.parameters.values() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        lacking = [n for n in required if n not in self.positional[: len(args)] and n not in kwargs]
        return _Call(self.cls, args, kwargs | dict.fromkeys(lacking, ...))

    def _unknown_arguments(self, first: str) -> str:
        words, own, elsewhere = vocabulary.module, {}, {}
        args = [x for x in self.args if not (self.is_optimizer and is_model(x))]
        free = [n for n in self.parameters if n not in self.kwargs and n not in self.positional[: len(args)]]
        start = f"`{self.name}({first}=...)`: there is no argument `{first}`."
        if self.is_optimizer and (len(args) < len(self.args) or set(words.PARAMETERS) & self.kwargs.keys()):
            start += " The parameters are given to `init(params)` and `step(grads, state, params)`."
        for key, x in self.kwargs.items():
            remedy = _foreign(words.ARGUMENTS, key) if self.is_optimizer and inspect.isclass(self.cls) else None
            if meant := [key] if key in self.parameters else meant_by(key, free) or meant_by(key, self.parameters):
                values = x if len(meant) > 1 and isinstance(x, (tuple, list)) else [x] * len(meant)
                own |= zip(meant, values, strict=False)
            elif remedy and x is not None and repr(x) not in ("False", "0", "0.0"):
                elsewhere[remedy] = x
            elif not remedy and not (self.is_optimizer and key in words.PARAMETERS):
                if close := suggestion(key, free):
                    return f"`{self.name}({key}=...)`: there is no argument `{key}`.{close}"
                start = f"`{self.name}({key}=...)`: there is no argument `{key}`, nor one like it."
        call = self._completed(args, own)
        return f"{start} {call.fault() or call._inside(elsewhere)}"

    def _inside(self, remedies: Mapping[str, Any]) -> str:
        """What to write for this call and for arguments that are something else here, such as a container around it."""
        written, notes = str(self), []
        for remedy in sorted(remedies, key=lambda remedy: "{call}" in remedy):
            template, _, note = remedy.partition(" # ")
            rate = _text([*self.args, self.kwargs.get("learning_rate")][0])
            written = template.format(call=written, name=self.name, rate=rate, value=_text(remedies[remedy]))
            notes += [note] * bool(note)
        return " ".join([f"Write `{written}`.", *notes])

    def _surplus_arguments(self) -> str:
        n = len(self.positional)
        takes = f"takes {listing(self.positional)} by position" if n else "takes no argument by position"
        start = f"`{self.name}` {takes}, and {len(self.args)} values were given."
        names = [name for name in self.parameters if name not in self.positional and name not in self.kwargs]
        if self.is_optimizer and names[:1] == ["eps_root"] and isinstance(self.args[n], float) and self.args[n] > 0:
            names = ["weight_decay"]  # as in torch
        call = _Call(self.cls, self.args[:n], self.kwargs | dict(zip(names, self.args[n:], strict=False)))
        remedy = call.fault() or f"Give the others by name, such as `{call}`."
        return f"{start} {remedy}" if len(self.args) - n <= len(names) else start


def is_model(x: Any) -> bool:
    """Whether it is a tree of arrays, and not an optimizer or a schedule."""
    leaves = [] if hasattr(x, "hyperparameters") else jtu.tree_leaves(x)
    return not jtu.all_leaves([x]) and any(hasattr(leaf, "shape") for leaf in leaves)


def _text(x: Any) -> str:
    return repr(x) if isinstance(x, (int, float, str, tuple, type(None))) and len(repr(x)) < 50 else "..."


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
    names = {str(entry_of(key)) for path, _ in jtu.tree_leaves_with_path(module, is_leaf=is_variable) for key in path}
    if found := next(filter(None, (inside(module, x) for x in meant_by(name, names))), None):
        return f"{start} {found}"
    return start + suggestion(name, [*own, *(x for x in dir(type(module)) if not x.startswith("_"))])


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
    """The error message for a container that got a transform in the place of something else; None if it did not."""
    fields = dataclasses.fields(cls)
    misplaced = ["part" not in field.metadata and _is_part(x) for field, x in zip(fields, args, strict=False)]
    if not any(misplaced) or not any("part" in field.metadata for field in fields):
        return None
    required = [p.name for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    names = [field.name for field in fields[: max(len(args), len(required))]]
    return f"`{cls.__name__}` was given its arguments in another order: write `{cls.__name__}({', '.join(names)})`."


def _is_part(x: Any) -> bool:
    """Whether it is a transform, or a mapping of transforms."""
    return hasattr(x, "each_part") or (isinstance(x, Mapping) and any(map(_is_part, x.values())))
