"""`FromFactory`: an optimizer whose definition is a plain function of hyperparameters."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import numpy as np

from .._protocol.container import AbstractOptimizer, check_part
from .._protocol.fields import required_numbers
from .._protocol.transform import AbstractTransform, everything_in
from .._support.checks import listing, suggestion
from .._support.keys import is_key_data, is_typed_key
from .._support.printing import format_call
from .._support.types import ARRAY_TYPES


class FromFactory(AbstractOptimizer):
    """An optimizer made by a function, called at every step with the current values of its arguments.

        def scaled(learning_rate, decay):
            return Chain(ScaleByAdam(), AddDecayedWeights(decay * learning_rate), Scale(-learning_rate))

        optimizer = FromFactory(scaled, learning_rate=CosineDecay(1e-3, 1000), decay=0.1)
        optimizer = optimizer.replace(decay=0.05)

    The arguments are its hyperparameters: numbers or schedules, which can be replaced, swept and differentiated.
    Everything that the function computes from them follows their changes. The function is traced like `transform()` of
    an `AbstractOptimizer`, so it must not depend on the values of its arguments in Python control flow. Bind arguments
    that aren't numbers with `functools.partial`. `inject_hyperparams(function)` also keeps the arguments in the state.

    Args:
        factory: function that takes the arguments by name and returns a transform.
        **arguments: the hyperparameters.

    Raises:
        ValueError: if an argument is not a number or a schedule, or if the function returns anything but a transform.
    """

    factory: Callable[..., AbstractTransform] = eqx.field(static=True)
    arguments: dict[str, Any] = required_numbers(arranged=dict)

    def __init__(self, factory: Callable[..., AbstractTransform], **arguments: Any):
        self.factory = factory
        self.arguments = arguments

    def transform(self) -> AbstractTransform:
        """Call the function with the current values of its arguments."""
        transform = self.factory(**self.arguments)
        check_part(f"`FromFactory({_name(self.factory)})`: what the function returns", transform)
        return transform

    def __repr__(self) -> str:
        return format_call("FromFactory", {"factory": self.factory, **self.arguments})


def call_factories(transform: AbstractTransform) -> None:
    """Call the functions in a transform with their arguments, which raises the errors of what these are used for."""
    for x in everything_in(transform):
        if isinstance(x, FromFactory):
            x.transform()


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or repr(function)


def from_call(
    factory: Callable[..., AbstractTransform], static_args: Iterable[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FromFactory:
    """Return `FromFactory` for a call of the function: numbers and functions become its arguments, the rest is bound.

    Args:
        factory: the function.
        static_args: names of further arguments to bind.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.

    Raises:
        TypeError: if the function can't be called like that.
        ValueError: if `static_args` names no argument, or if an argument without a name is given.
    """
    arguments = _named_arguments(factory, args, kwargs)
    for name in static_args:
        if name not in arguments:
            raise ValueError(
                f"`inject_hyperparams(static_args=...)`: `{_name(factory)}` has no argument `{name}`."
                f"{suggestion(name, list(arguments))} It has {listing(list(arguments))}."
            )
    live = {name: x for name, x in arguments.items() if name not in static_args and _is_live(x)}
    settings = {name: x for name, x in arguments.items() if name not in live}
    return FromFactory(functools.partial(factory, **settings) if settings else factory, **live)


def _named_arguments(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those with default values included."""
    signature = inspect.signature(factory)
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, x in call.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= x
        elif kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            arguments[name] = x
        elif x != ():
            raise ValueError(
                f"`inject_hyperparams({_name(factory)})`: the argument {x!r} has no name, by which the state could "
                f"hold it. Give the function named parameters."
            )
    return arguments


def _is_live(x: Any) -> bool:
    """Whether an argument is a number or a schedule, rather than a part of the definition such as a flag or a dtype."""
    if is_key_data(x) or is_typed_key(x):
        return False
    is_number = isinstance(x, (int, float, *ARRAY_TYPES)) and not isinstance(x, (bool, np.bool_))
    return is_number or (callable(x) and not isinstance(x, (type, AbstractTransform)))
