"""Names of optax and what they are here: one rule for all that need no function of their own.

A function is the one of modulax. A class is called as the function of optax that makes the same transformation: with
`follow="optax"` where it has that field, and with the arguments that optax takes by position in their place.
"""

import importlib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .._support.optax_names import home

# The modules of modulax that are searched first.
PLACES = {
    "contrib": "",
    "experimental.aggregating": "aggregate",
    "transforms": "",
    "tree_utils": "tree",
}


def counterpart(module: str, name: str) -> Any:
    """The class or function of modulax for a name of optax."""
    path = home(name, PLACES.get(module, module))
    if path is None:
        raise AttributeError(f"`optax.{module}.{name}` has no counterpart in modulax.")
    return operator.attrgetter(path)(importlib.import_module("modulax"))


def by_rule(module: str, name: str) -> Any:
    """What a name of optax is, according to the rule."""
    value = counterpart(module, name)
    return as_function(value, name) if inspect.isclass(value) and name[0].islower() else value


def as_function(
    cls: type,
    name: str,
    names: Mapping[str, str] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    without: Sequence[str] = (),
    by_name: Sequence[str] = (),
) -> Any:
    """A class as the function of optax; the class itself if it has the same arguments.

    Arguments that are given by name here are given by position too in optax, up to `nesterov`.

    Args:
        cls: the class.
        name: the name of the function.
        names: arguments that have other names: ours by optax's.
        defaults: defaults of optax, by its names.
        without: arguments that optax does not have.
        by_name: arguments that optax takes by name only; `nesterov` and those after it are where they are here.
    """
    theirs, ours = {own: name for name, own in names.items()}, inspect.signature(cls).parameters
    parameters, is_positional = [], True
    for p in ours.values():
        if p.name in ("follow", *without):
            continue
        if p.name in by_name or (p.name == "nesterov" and p.kind is p.KEYWORD_ONLY):
            is_positional = False
        shown = theirs.get(p.name, p.name)
        p = p.replace(name=shown, default=defaults.get(shown, p.default))
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            p = p.replace(kind=p.POSITIONAL_OR_KEYWORD if is_positional else p.KEYWORD_ONLY)
        parameters.append(p)
    if parameters == list(ours.values()):
        return cls
    fixed = {"follow": "optax"} if "follow" in ours else {}

    def call(**given: Any) -> Any:
        return cls(**{names.get(key, key): x for key, x in given.items()}, **fixed)

    return make_function(name, inspect.Signature(parameters), call, cls.__doc__)


def make_function(name: str, signature: inspect.Signature, call: Callable[..., Any], doc: str | None) -> Any:
    """A function with this signature, which calls another one with all arguments by name."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(**signature.bind(*args, **kwargs).arguments)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__signature__ = signature
    function.constructs = True  # type: ignore[attr-defined]
    return function
