"""`GradientTransformation`: the pair of functions `init` and `update`, with states in the form of optax.

What `compat` makes holds a transform of modulax, `tx.transform`, in both functions. They are compiled as those of the
transform, and convert its state within the program, where it costs nothing.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .. import LookaheadParams as OurLookaheadParams
from .._plugin.arguments import any_range
from .._plugin.arrays import runs_as_python
from .._plugin.containers import named_in
from .._plugin.transforms import AbstractUpdateBoundary, InitBoundary, as_written, entry, everything_in
from .._plugin.trees import paired, shapes_without, trainable
from ..aggregate import Aggregator as _Aggregator
from ..authoring import AbstractTransform
from ..schedules import AbstractSchedule
from . import _container_layouts, _optimizer_layouts, _rule_layouts
from ._callers_schedules import Reading, with_callers_schedules
from ._layouts import Form, from_optax, misfit, to_optax
from ._pairs import Pair, is_pair
from ._states import LookaheadParams
from ._trees import as_arrays

_REGISTERED = (_container_layouts, _optimizer_layouts, _rule_layouts)  # the layouts that they register


class _Update(AbstractUpdateBoundary):
    """Updates that are unlike the parameters go to a transform that does not look at these, as in optax.

    The states of optax hold no Modules, and the errors of functions of the caller are shown as they are.
    """

    def run(self, transform: Any, /, updates: Any, state: Any, params: Any, extra: Any) -> Any:
        """Call the method, without parameters that don't fit."""
        if params is not None and not _fits(transform, updates, params):
            params = None
        return self.called(transform, updates, state, params, extra)


def _fits(transform: Any, updates: Any, params: Any) -> bool:
    updates = trainable(updates)
    try:
        paired(trainable(params), updates, "update", per_example=transform.example_axes)
    except ValueError:
        return "params" in transform.needs
    return True


@functools.cache
def _entries(cls: type[AbstractTransform]) -> dict[str, Callable[..., Any]]:
    """The functions for the transforms of a class, which are called with the transform first."""
    init_here, update_here = as_written(cls.init), as_written(cls.update)

    def init(self: Any, params: Any) -> Any:
        return to_optax(self, init_here(self, params), Form(params))

    def update(self: Any, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        axes = self.example_axes
        form = Form((shapes_without(axes, updates) if axes else updates) if params is None else params)
        try:
            ours = from_optax(self, state, form)
        except (AttributeError, KeyError, TypeError) as error:
            raise misfit(self, state) from error
        updates, new = update_here(self, updates, ours, params, **extra)
        return updates, to_optax(self, new, form)

    compiled = {"init": entry(InitBoundary(init, cls.__name__)), "update": entry(_Update(update, cls.__name__))}
    return compiled | {"init as Python": init, "update as Python": update}


_MOST_COMPILED = 20  # times that a schedule reads another value, until it is called at every step
_SIGNATURES = {
    "init": inspect.signature(lambda params: None),
    "update": inspect.signature(lambda updates, state, params=None, **extra_args: None),
}


class Method:
    """`init` or `update` of a transform of modulax, as a function. Equal ones are equal, and have one hash.

    Args:
        transform: the transform.
        name: the name of the method.
    """

    def __init__(self, transform: AbstractTransform, name: str):
        self.transform, self.__name__ = transform, name
        self.__qualname__ = f"{type(transform).__name__}.{name}"
        self.__signature__ = _SIGNATURES[name]
        # Functions of the caller get their own leaves, and are compiled under the caller's `jit` only.
        self._is_python = any(runs_as_python(type(x)) for x in everything_in(transform))
        self._function = _entries(type(transform))[f"{name} as Python" if self._is_python else name]
        self._compiled: list[Reading] = []
        self._times, self._called = 1, with_callers_schedules(transform, self._compiled)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method, with numbers and integers as floating-point arrays."""
        if any(map(Reading.has_changed, self._compiled)):
            self._read_again()
        if not self._is_python:
            args = tuple(as_arrays(x) if i != 1 else x for i, x in enumerate(args))
            kwargs |= {key: as_arrays(kwargs[key]) for key in ("updates", "params") if key in kwargs}
            if self.__name__ == "init" and not jtu.tree_leaves((args, kwargs)):
                kwargs["allow_empty"] = True
        if type(kwargs.get("params", args[-1] if args else None)) is LookaheadParams:
            names = _SIGNATURES[self.__name__].parameters
            return self._of_pair(**dict(zip(names, args, strict=False)) | kwargs)
        with any_range():
            return self._function(self._called, *args, **kwargs)

    def _read_again(self) -> None:
        self._compiled, self._times = [], self._times + 1
        is_rare = self._times <= _MOST_COMPILED
        self._called = with_callers_schedules(self.transform, self._compiled if is_rare else None)

    def _of_pair(self, params: Any, updates: Any = None, state: Any = None, **extra: Any) -> Any:
        """Call a method of `Lookahead` with a pair of parameters, which stays outside of the compiled program."""
        t, pair = self.transform, OurLookaheadParams(*params)
        form = Form(pair.fast)
        if self.__name__ == "init":
            return to_optax(t, t.init(pair), form)
        steps, new = t.update(updates, from_optax(t, state, form), pair, **extra)
        return LookaheadParams(steps.fast, steps.slow), to_optax(t, new, form)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Method) or self.__name__ != other.__name__:
            return False
        return _are_equal(self.transform, other.transform)

    def __hash__(self) -> int:
        return hash((self.__name__, _hash(self.transform)))

    def __repr__(self) -> str:
        return f"<{self.__name__} of {self.transform!r}>"

    def __reduce__(self) -> Any:
        return Method, (self.transform, self.__name__)


def _is_traced(module: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jtu.tree_leaves(module))


def _hash(module: Any) -> int:
    if _is_traced(module):
        return id(module)
    return hash((jtu.tree_structure(module), *(np.asarray(x).tobytes() for x in jtu.tree_leaves(module))))


def _are_equal(a: Any, b: Any) -> bool:
    """Whether two Modules are equal; traced ones are equal to themselves alone."""
    return a is b or (not _is_traced((a, b)) and _hash(a) == _hash(b) and bool(a == b))


class GradientTransformation(NamedTuple):
    """A pair of functions, `init(params)` and `update(updates, state, params)`."""

    init: Callable[..., Any]
    update: Callable[..., Any]

    @property
    def transform(self) -> AbstractTransform:
        """The transform of modulax, which can be replaced, swept and differentiated."""
        return native(self)


class GradientTransformationExtraArgs(GradientTransformation):
    """A pair of functions of which `update` takes extra arguments."""


class Aggregator(GradientTransformationExtraArgs):
    """A pair of functions that aggregates per-example gradients."""


class ScheduleFunction:
    """A schedule of modulax as a function of the step. Equal ones are equal, and have one hash.

    Args:
        schedule: the schedule.
    """

    def __init__(self, schedule: AbstractSchedule):
        self.schedule = schedule

    def __call__(self, count: Any) -> Any:
        """Return the value at a step."""
        return self.schedule(count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduleFunction) and _are_equal(self.schedule, other.schedule)

    def __hash__(self) -> int:
        return _hash(self.schedule)

    def __repr__(self) -> str:
        return repr(self.schedule)


@any_range()
def transformation(x: Any) -> Any:
    """A transform as a pair of functions, and a schedule as a function; anything else is returned as it is."""
    if isinstance(x, AbstractSchedule):
        return ScheduleFunction(x)
    if not isinstance(x, AbstractTransform):
        return x
    if is_pair(x):
        cls = GradientTransformationExtraArgs if x.takes_extra else GradientTransformation
        return cls(x.init_function, x.update_function)
    cls = Aggregator if x.example_axes else GradientTransformationExtraArgs
    return cls(Method(x, "init"), Method(x, "update"))


def native(x: Any) -> Any:
    """The transform that a transformation of optax stands for; anything else is returned as it is."""
    if isinstance(x, AbstractTransform) or inspect.isclass(x):
        return x
    init, update = _functions_of(x)
    if init is None:
        return x
    if isinstance(init, Method) and isinstance(update, Method) and init.transform is update.transform:
        return init.transform
    if isinstance(x, Aggregator):
        return _Aggregator(init, update)
    names = {cls.__name__ for cls in type(x).__mro__}
    return Pair(init, update, bool({"GradientTransformationExtraArgs", "MultiSteps"} & names))


def _functions_of(x: Any) -> tuple[Any, Any]:
    """The functions `init` and `update` of a transformation; None if it is something else."""
    is_plain = type(x) is tuple and len(x) == 2 and all(callable(y) and not hasattr(y, "each_part") for y in x)
    init, update = x if is_plain else (getattr(x, "init", None), getattr(x, "update", None))
    is_other = not callable(init) or not callable(update) or _is_stateful_schedule(x, init)
    return (None, None) if is_other else (init, update)


def _is_stateful_schedule(x: Any, init: Callable[..., Any]) -> bool:
    return callable(x) and (isinstance(x, AbstractSchedule) or not inspect.signature(init).parameters)


def native_in(x: Any) -> Any:
    """The transform or the schedule in an argument, or those in a mapping or a sequence."""
    if isinstance(x, Mapping) and x and all(isinstance(native(y), AbstractTransform) for y in x.values()):
        make: Any = type(x)
        return make((key, native(y)) for key, y in x.items())
    if type(x) in (list, tuple) and any(isinstance(y, ScheduleFunction) for y in x):
        return [native_in(y) for y in x]
    return x.schedule if isinstance(x, ScheduleFunction) else native(x)


def making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of transforms that returns one, as a function of transformations."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        with any_range(warns=True):
            return transformation(function(*map(native_in, args), **{key: native_in(x) for key, x in kwargs.items()}))

    return make


def with_extra_args_support(tx: Any) -> Any:
    """A transformation whose `update` takes extra arguments, and ignores those that its function does not name.

    Args:
        tx: the transformation.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    transform = native(tx)
    if not is_pair(transform) or transform.takes_extra:
        return transformation(transform)
    update_function = transform.update_function

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> Any:
        return update_function(updates, state, params, **named_in(update_function, extra_args))

    return GradientTransformationExtraArgs(transform.init_function, update)
