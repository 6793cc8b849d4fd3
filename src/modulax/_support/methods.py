"""Methods whose results are indexed, `optimizer.hyperparameters()["learning_rate"]`, and calls that say so."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .wrong_calls import call_of, wrong_function_call, wrong_method_call

F = TypeVar("F", bound=Callable[..., Any])


def keywords_only(method: F) -> F:
    """Decorate a method that takes arguments by name only, so that one by position is answered with the call."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if args:
            raise TypeError(wrong_method_call(method, type(self).__name__, self, args, kwargs))
        return method(self, **kwargs)

    return cast(F, call)


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
            call = f"optimizer.{call_of(self.func)}"
            raise TypeError(f"`{self.__name__}` is a method, which returns them: write `{call}[{key!r}]`.")

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
