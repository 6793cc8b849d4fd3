"""`GradientTransformation(init, update)`: a pair of functions as a transform, whose state is the caller's own."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx

from .._containers.optax_adapters import named_in
from .._protocol.transform import AbstractTransform
from .._support.tracing import call_user
from ..aggregate import AbstractAggregator, Aggregator as _Aggregator
from ._unpacking import own_states, unpacking


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
        return own_states(call_user(self.init_function, params))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Call the function."""
        given = extra if self.takes_extra else named_in(self.update_function, extra)
        positional = (updates, unpacking(state), *([] if params is None else [params]))
        updates, state = call_user(self.update_function, *positional, **given)
        return updates, own_states(state)


def ignoring_extra(transform: AbstractTransform) -> AbstractTransform:
    """A pair that takes all extra arguments, and passes those on that its function names; others are unchanged."""
    if not isinstance(transform, Pair) or transform.takes_extra:
        return transform
    update = transform.update_function

    def ignoring(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return update(updates, state, params, **named_in(update, extra))

    return unpacking(Pair(transform.init_function, ignoring, takes_extra=True))


class _Answers(type):
    """Makes a transform of two functions, and answers yes for every transform of modulax."""

    takes_extra = False

    def __call__(cls, init: Callable[..., Any], update: Callable[..., Any]) -> Pair:
        return unpacking(Pair(init, update, cls.takes_extra))

    def __instancecheck__(cls, instance: Any) -> bool:
        is_plain_pair = isinstance(instance, Pair) and not instance.takes_extra
        return isinstance(instance, AbstractTransform) and not (cls.takes_extra and is_plain_pair)


class GradientTransformation(metaclass=_Answers):
    """A pair of functions as a transform; `isinstance` answers yes for every transform of modulax."""

    _fields = ("init", "update")


class GradientTransformationExtraArgs(metaclass=_Answers):
    """As `GradientTransformation`, with an `update` that takes any extra arguments.

    `isinstance` answers no for a `GradientTransformation` of two functions.
    """

    _fields = ("init", "update")
    takes_extra = True


class _AnswersForExamples(type):
    """Makes an aggregator, and answers yes for every transform of per-example gradients."""

    def __call__(cls, init: Callable[..., Any], update: Callable[..., Any]) -> AbstractAggregator:
        return unpacking(_Aggregator(init, update))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, AbstractTransform) and bool(instance.example_axes)


class Aggregator(metaclass=_AnswersForExamples):
    """A pair of functions as an aggregator; `isinstance` answers yes for every transform of per-example gradients."""

    _fields = ("init", "update")
