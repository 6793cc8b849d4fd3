"""Entry points: `init`, `update`, `eval_params` and `step` as compiled functions of the transform itself.

A method that a user calls runs a compiled program. One that is called while a program is being traced, for instance by
a container, is the plain function, so that a chain of optimizers is one program and not a nest of them. The classes in
`boundary.py` define the work around either call: filter the model, check the arguments.
"""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import jax

from .._support.failures import located, shortened
from .._support.tracing import is_tracing
from .._support.wrong_calls import wrong_function_call
from .hyperparameters import AbstractHyperparameters
from .mistakes import wrong_state
from .program import Program

F = TypeVar("F", bound=Callable[..., Any])


class AbstractBoundary(abc.ABC):
    """The work between the caller of a method and the method itself, such as filtering and checking arguments.

    Args:
        method: the method as its class wrote it.
        owner: name of the class, shown in profiles.
    """

    models: ClassVar[tuple[int, ...]]
    """Indices of the program's arguments that may be whole models."""

    result: ClassVar[int | None] = None
    """Index of the argument that the first result is like, if it is a model."""

    def __init__(self, method: Callable[..., Any], owner: str):
        self.method, self.owner = method, owner
        self.program = Program(self.run, f"{owner}.{method.__name__}", self.models, result=self.result)

    def inside(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run the method within a program that is being traced, and name it in profiles and in error messages."""
        name, method = type(transform).__name__, self.method.__name__
        with jax.named_scope(name if method == "update" else f"{name}.{method}"), located(name, method):
            return self.method(transform, *args, **kwargs)

    @abc.abstractmethod
    def run(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Filter the arguments, then call `inside`: the function that is compiled."""

    @abc.abstractmethod
    def outside(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program: the call of a user."""


def entry(boundary: AbstractBoundary) -> Callable[..., Any]:
    """Make a method of a boundary: compiled when a user calls it, and plain while another one is being traced.

    The method binds like any function. A bound method hashes and compares by the identity of its owner, so that
    `jax.jit(optimizer.update)` works although the leaves of an optimizer are not hashable.
    """
    owner = boundary.owner

    @functools.wraps(boundary.method)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_inside = is_tracing()
        try:
            return (boundary.inside if is_inside else boundary.outside)(self, *args, **kwargs)
        except Exception as error:
            _explain(error, method, owner, self, args, kwargs)
            if not is_inside:
                shortened(error)
            raise

    vars(method)["boundary"] = boundary  # read by `as_written`, for a subclass that inherits the method
    return method


def explained(function: F) -> F:
    """Make a method of a transform that runs on the host say what to write where its arguments are wrong.

    Args:
        function: the method.
    """

    @functools.wraps(function)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except Exception as error:
            owner = type(self).__name__ if isinstance(self, AbstractHyperparameters) else "Optimizer"
            _explain(error, method, owner, self, args, kwargs)
            given = inspect.signature(function).bind(self, *args, **kwargs).arguments
            is_foreign = isinstance(error, (AttributeError, TypeError)) and "state" in given
            update: Any = getattr(type(self), "update", None)  # which a schedule may not have
            if is_foreign and (message := wrong_state(owner, as_written(update), given["state"], error=error)):
                raise ValueError(message) from error
            if not is_tracing():
                shortened(error)
            raise

    return cast(F, method)


def _explain(
    error: Exception, method: Callable[..., Any], owner: str, self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise an error that says what to write, if a method was called on the class, or if an argument is missing."""
    # Asked here because a step has no time for it.
    if not isinstance(self, AbstractHyperparameters):
        name = method.__name__
        raise TypeError(f"`{owner}.{name}` was called on the class: write `{owner}(...).{name}(...)`.") from None
    if isinstance(error, TypeError) and (message := wrong_function_call(method, (self, *args), kwargs)):
        raise TypeError(message) from error


def as_written(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that an entry point was made from; any other method is returned unchanged."""
    boundary = getattr(method, "boundary", None)
    return method if boundary is None else boundary.method
