"""Error messages for calls and attributes that Python refuses: what was meant, and what to write instead.

`explained` and `result_is_indexed`, at the end, decorate functions and methods, so that wrong calls of them say so.
"""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import jax.tree_util as jtu

from .checks import listing, suggestion
from .flax_nodes import is_variable
from .optree_nodes import entry_of
from .slots import vocabulary

F = TypeVar("F", bound=Callable[..., Any])


def meant_by(word: str, known: Iterable[str]) -> list[str]:
    """The known names that a word from another library may mean: one, several for `betas`, or none."""
    words = vocabulary.module
    known = list(known)
    if len(several := [name for name in words.SEVERAL.get(word, ()) if name in known]) > 1:
        return several
    if word in known:
        return [word]
    fitting = (name for name in known if word in words.WORDS.get(name, "").split())
    alike = (name for name in fitting if {*words.NOT_BESIDE.get(name, "").split()}.isdisjoint(known))
    return [*itertools.islice(alike, 1)] or _meant_in_part(word, known)


def _meant_in_part(word: str, known: Iterable[str]) -> list[str]:
    """The known names that begin as a word does, and whose rest may be meant by the rest of it."""
    head, _, tail = word.partition("_")
    prefix = f"{vocabulary.module.PREFIXES.get(head, head)}_"
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    return [prefix + name for name in meant_by(tail, inside)] if tail else []


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


def _call_of(function: Callable[..., Any]) -> str:
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
        return _refused(function, args, error)
    return None


def _refused(function: Callable[..., Any], args: tuple[Any, ...], error: TypeError) -> str:
    """The error message for a call of a function that Python refuses."""
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    if names[0] == "self" and function.__name__ != "__init__":
        return f"`{type(args[0]).__name__}.{function.__name__}`: {error}. Write `optimizer.{_call_of(function)}`."
    given = [(name, x) for name, x in zip(names, args, strict=False) if not hasattr(x, "each_part")]
    here = ", ".join(f"`{name}` is {_what(x)}" for name, x in given if name != "self")
    start = f"`{_name_of(function)}`: {error}. Write `{_call_of(function)}`."
    return f"{start} In this call, {here}." if here else start


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
        # What other libraries give to an optimizer: numbers that are another transform here, and the parameters.
        words = vocabulary.module
        self.elsewhere = words.ARGUMENTS if self.is_optimizer and inspect.isclass(cls) else {}
        self.of_init = words.PARAMETERS if self.is_optimizer else ()
        given = {*self.positional[: len(self.args)], *self.kwargs}
        self.free = [name for name in self.parameters if name not in given]

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
            return f"`{self.name}` needs {listing([*call.kwargs][len(self.kwargs) :])}: write `{call}`."
        return None

    def _completed(self, args: list[Any], kwargs: dict[str, Any]) -> "_Call":
        """The call with these arguments, and `...` for the required ones that are not given."""
        free = [self.parameters[name] for name in _Call(self.cls, args, kwargs).free]
        lacking = [p.name for p in free if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        return _Call(self.cls, args, kwargs | dict.fromkeys(lacking, ...))

    def _unknown_arguments(self, first: str) -> str:
        args = [x for x in self.args if not (self.is_optimizer and is_model(x))]
        call = _Call(self.cls, args, self.kwargs)
        own, elsewhere, unlike = call._assigned()
        for key in unlike:
            if close := suggestion(key, call.free):
                return f"`{self.name}({key}=...)`: there is no argument `{key}`.{close}"
        said = "."
        if unlike:
            first, said = unlike[-1], ", nor one like it."
        elif len(args) < len(self.args) or not self.kwargs.keys().isdisjoint(self.of_init):
            said = ". The parameters are given to `init(params)` and `step(grads, state, params)`."
        call = self._completed(args, own)
        remedy = call.fault() or call._inside(elsewhere)
        return f"`{self.name}({first}=...)`: there is no argument `{first}`{said} {remedy}"

    def _assigned(self) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """The values by the arguments that are meant, those by what they are here instead, and words like neither."""
        own, elsewhere, unlike = {}, {}, list[str]()
        for key, x in self.kwargs.items():
            if meant := [key] if key in self.parameters else meant_by(key, self.free) or meant_by(key, self.parameters):
                values = x if len(meant) > 1 and isinstance(x, (tuple, list)) else [x] * len(meant)
                own |= zip(meant, values, strict=False)
            elif remedy := _foreign(self.elsewhere, key):
                elsewhere |= {} if repr(x) in ("None", "False", "0", "0.0") else {remedy: x}
            elif key not in self.of_init:
                unlike.append(key)
        return own, elsewhere, unlike

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
        names = self.free
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
        module, name = self.module, self.attribute
        start = f"`{type(module).__name__}` has no attribute `{name}`."
        if found := inside(module, name):
            return f"{start} {found}"
        own = [field.name for field in dataclasses.fields(module)]
        if meant := meant_by(name, own):
            return f"{start} It is called {listing(meant)}."
        if remedy := foreign_attribute(module._inside_is_read_by(name)[0], name):
            return f"{start} {remedy}"
        names = {name for names, _, _ in _named_leaves(module) for name in names}
        if found := next(filter(None, map(functools.partial(inside, module), meant_by(name, names))), None):
            return f"{start} {found}"
        return start + suggestion(name, [*own, *(x for x in dir(type(module)) if not x.startswith("_"))])


def inside(module: Any, name: str) -> str | None:
    """Say where a Module has a value of this name further inside, and how to read it; None if it has none."""
    found = [(names, path, leaf) for names, path, leaf in _named_leaves(module) if name in names]
    if not found:
        return None
    what, remedy = type(module)._inside_is_read_by(name)
    if any(is_variable(leaf) for _, _, leaf in found):
        what, remedy = "optimizer.hyperparameters", "Its value is read and assigned by `[...]`."
    elif what == "optimizer" and all(names[-1] != name for names, _, _ in found):  # a part
        remedy = f"Change it with `replace({name}=...)`."
    where = dict.fromkeys(what + jtu.keystr(path[: names.index(name) + 1]) for names, path, _ in found)
    return f"It has {listing(where, 4)}. {remedy}"


def _named_leaves(module: Any) -> Iterator[tuple[list[str], tuple[Any, ...], Any]]:
    """Yield the names of the keys on the path to each leaf, the path, and the leaf."""
    for path, leaf in jtu.tree_leaves_with_path(module, is_leaf=is_variable):
        yield [str(entry_of(key)) for key in path], path, leaf


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


def explained(function: F) -> F:
    """Decorate a function, so that a call without a required argument is answered with one that has it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if message := wrong_function_call(function, args, kwargs):
                raise TypeError(message) from error
            raise

    return cast(F, call)


if TYPE_CHECKING:

    def result_is_indexed(function: F) -> F: ...

else:

    class _Bound(functools.partial):
        """A bound method. Like Python's, it is equal to another one of the same object, so that `jax.jit` knows it."""

        def __getitem__(self, key: Any) -> Any:
            raise TypeError(self._as_called(f"[{key!r}]"))

        def __getattr__(self, name: str) -> Any:
            is_hidden = name.startswith("_")  # as others ask for it by `hasattr`
            meant = next(iter(meant_by(name, vocabulary.module.WORDS)), name)
            key = f".{name}()" if name in dir(dict) else f'["{meant}"]'
            raise AttributeError(f"no attribute `{name}`" if is_hidden else self._as_called(key), name=None, obj=None)

        def _as_called(self, rest: str) -> str:
            call = f"optimizer.{_call_of(self.func)}"
            return f"`{self.__name__}` is a method, which returns them: write `{call}{rest}`."

        def __eq__(self, other: object) -> bool:
            return isinstance(other, _Bound) and self.func is other.func and self.args[0] is other.args[0]

        def __hash__(self) -> int:
            return hash((self.func, id(self.args[0])))

    class result_is_indexed:  # noqa: N801 (a decorator)
        """Decorate a method whose result has names, so that indexing the method itself says what to write."""

        def __init__(self, function: Callable[..., Any]):
            self.function = function
            functools.update_wrapper(self, function)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # on the class, as `inspect` and Sphinx look at it
            return self.function(*args, **kwargs)

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self.function
            bound = functools.update_wrapper(_Bound(self.function, instance), self.function)
            del bound.__wrapped__  # whose signature has `self`
            return bound
