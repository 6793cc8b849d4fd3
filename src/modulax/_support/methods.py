"""Methods whose results are indexed, `optimizer.hyperparameters()["learning_rate"]`, and calls that say so."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .slots import vocabulary
from .wrong_calls import call_of, meant_by, wrong_function_call

F = TypeVar("F", bound=Callable[..., Any])


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
            call = f"optimizer.{call_of(self.func)}"
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
