"""Names of optax and their counterparts here, for all that need no function of their own.

A function is the one of modulax. A class is called through a function with optax's name: with `follow="optax"` where it
has that field, and with the arguments that optax takes by position in their place.
"""

import inspect
import operator
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .. import ScalarOrSchedule
from .._catalog._plugin import home
from .._plugin.arguments import any_range
from .._plugin.messages import wrong_call
from .._plugin.transforms import library
from ._masks import as_mask
from ._transformations import making, native_in, transformation

# The modules of modulax that are searched first.
PLACES = {
    "contrib": "",
    "experimental.aggregating": "aggregate",
    "transforms": "",
    "tree_utils": "tree",
}
# Arguments of Sophia in optax.
PRINTING = {"verbose": False, "print_win_rate_every_n_steps": 0}


def counterpart(module: str, name: str) -> Any:
    """The class or function of modulax for a name of optax."""
    path = home(name, PLACES.get(module, module))
    if path is None:
        raise AttributeError(f"`optax.{module}.{name}` has no counterpart in modulax.")
    return operator.attrgetter(path)(library.module)


def equivalent(module: str, name: str) -> Any:
    """The counterpart of a name of optax, called as in optax."""
    value = counterpart(module, name)
    if inspect.isclass(value) and name[0].islower():
        return as_function(value, module, name)
    return making(value) if name == "add_mean_variance_to_opt" else value


def as_function(
    cls: Any,
    module: str,
    name: str,
    names: Mapping[str, str] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    without: Sequence[str] = (),
    by_name: Sequence[str] = (),
    ignored: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """A class as a function of optax.

    Arguments that are given by name here are given by position too in optax, up to `nesterov`.

    Args:
        cls: the class, or a `functools.partial` of it.
        module: the module of the function in optax.
        name: the name of the function.
        names: arguments that have other names: ours by optax's.
        defaults: defaults of optax, by its names.
        without: arguments that optax does not have.
        by_name: arguments that optax takes by name only; `nesterov` and those after it are where they are here.
        ignored: arguments of optax that print something, with their defaults; nothing is printed here.
    """
    construct, cls = cls, getattr(cls, "func", cls)
    theirs, ours = {own: name for name, own in names.items()}, inspect.signature(construct).parameters
    parameters, is_positional = [], True
    for p in ours.values():
        if p.name in ("follow", *without):
            continue
        if p.name in by_name or (p.name == "nesterov" and p.kind is p.KEYWORD_ONLY):
            is_positional = False
        shown = theirs.get(p.name, p.name)
        p = p.replace(name=shown, default=defaults.get(shown, p.default))
        if shown == "learning_rate":
            p = p.replace(annotation=ScalarOrSchedule)  # programs ask the signature which functions take a schedule
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            p = p.replace(kind=p.POSITIONAL_OR_KEYWORD if is_positional else p.KEYWORD_ONLY)
        parameters.append(p)
    parameters += [inspect.Parameter(x, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=ignored[x]) for x in ignored]
    fixed = {"follow": "optax"} if "follow" in ours else {}
    signature = inspect.Signature(parameters)

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(wrong_call(function, args, kwargs)) from error
        unused = [given.pop(key, None) for key in ignored]
        if any(unused):
            warnings.warn(f"`{name}` prints nothing here; log the state instead.", stacklevel=2)
        masks = {key: as_mask(x) for key, x in given.items() if key.endswith("mask")}
        values = {names.get(key, key): native_in(x) for key, x in (given | masks).items()}
        with any_range(warns=True):
            return transformation(construct(**values, **fixed))

    function.__name__ = function.__qualname__ = name
    function.__module__ = f"modulax.compat.{module}".rstrip(".")  # by which pickle finds it
    function.__doc__ = cls.__doc__
    function.__signature__ = signature
    function.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    function.constructs = cls  # type: ignore[attr-defined]
    return function
