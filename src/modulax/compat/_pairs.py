"""`Pair`: two functions of the caller as a transform, whose state is their own."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from typing_extensions import TypeIs

from .._plugin.arrays import call_user
from .._plugin.containers import named_in
from .._plugin.transforms import as_written
from ..authoring import AbstractTransform


class Pair(AbstractTransform):
    """A pair of functions, called as optax calls them: the state is what they return, and no dtype is changed.

    Like the functions of optax, it is compiled only under the caller's `jit` (`runs_as_python`), so that extra
    arguments which are Python numbers remain Python numbers.

    Args:
        init_function: function of the parameters that returns the state.
        update_function: function `update(updates, state, params)`, with or without extra arguments.
        takes_extra: whether all extra arguments are passed on; otherwise those that the function names.
    """

    runs_as_python: ClassVar[bool] = True

    init_function: Callable[..., Any] = eqx.field(static=True)
    update_function: Callable[..., Any] = eqx.field(static=True)
    takes_extra: bool = eqx.field(static=True)

    def init(self, params: Any) -> Any:
        """Return what the function returns."""
        return call_user(self.init_function, params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Call the function."""
        given = extra if self.takes_extra else named_in(self.update_function, extra)
        return call_user(self.update_function, updates, state, params, **given)


def without_boundary(cls: type[AbstractTransform]) -> None:
    """Call `init` and `update` of a class as they are written, with the caller's own leaves, and errors as they are.

    Args:
        cls: the class.
    """
    for name in ("init", "update"):
        setattr(cls, name, as_written(getattr(cls, name)))


without_boundary(Pair)


def is_pair(x: object) -> TypeIs[Pair]:
    """Whether this is a pair of functions."""
    return isinstance(x, Pair)
