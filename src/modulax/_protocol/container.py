"""Transforms that hold others: containers, and optimizers.

A container declares its parts, `inner: AbstractTransform = required_part()`, and implements `init` and `update`, which
call those of the parts and pass `extra` on. `each_part`, `at`, `eval_params` and the check of every part follow from
the declarations; `describe`, the registry, citations and per-example gradients use `each_part`. A container that gives
a part only some of the leaves says which by `receives=`. One that counts the steps of its parts declares
`clock = "steps"` and has a field `count` in its state; one that counts in another way overrides `resolved`.

An optimizer has flat hyperparameters, and a method `transform()` that composes the algorithm from transforms.
"""

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import no_steps, safe_increment
from .._support.checks import brief
from .._support.module import AbstractState, nested, shared, with_fields
from .._support.placement import typed_like
from .._support.tracing import tracing
from .._support.types import Count, P, Params, State, Updates
from .._support.wrong_calls import is_model
from ..tree._align import align
from ..tree._paths import is_plain
from .hyperparameters import AbstractHyperparameters
from .masks import merge, select
from .schedule_values import advance, resolve, schedule_states, with_current_values
from .transform import AbstractTransform, Clock, EmptyState, Part

T = TypeVar("T", bound=AbstractTransform)

if TYPE_CHECKING:
    from equinox import field as required_part  # a field specifier, as `required_number` is in `fields.py`
else:

    def required_part(
        *,
        optional: bool = False,
        state: str | Callable[[Any], Any] = "inner_state",
        auxiliary: bool = False,
        converter: Callable[[Any], Any] | None = None,
        receives: Callable[[Any, Any, PyTree], Sequence[bool]] | None = None,
    ) -> Any:
        """Declare a required field that holds a transform, or a mapping of transforms, in an `AbstractContainer`.

            class Twice(mx.AbstractContainer):
                first: mx.AbstractTransform = mx.required_part(state="first_state")
                others: dict[str, mx.AbstractTransform] = mx.required_part(state="other_states")

        pyright and mypy report a constructor call without it.

        Args:
            optional: whether None is allowed.
            state: name of the field of the container's state that holds the state of the part, or a mapping of states
                by the same keys, in which stateless parts may be left out; or a function that takes the container's
                state and returns either.
            auxiliary: whether the updates of the part affect the parameters only through other parts, as those of the
                adversary in `SAM` do. `describe` and `eval_params` then leave it out.
            converter: function that is applied to the given value, such as `collections.OrderedDict`.
            receives: for a container that gives the part only some of the parameters, a function of the container, of
                the key of the part (None without a mapping) and of a tree like the parameters, which returns a boolean
                for each leaf in JAX's order.
        """
        return part(optional=optional, state=state, auxiliary=auxiliary, converter=converter, receives=receives)


def part(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Any = dataclasses.MISSING,
    optional: bool = False,
    state: str | Callable[[Any], Any] = "inner_state",
    auxiliary: bool = False,
    converter: Callable[[Any], Any] | None = None,
    receives: Callable[[Any, Any, PyTree], Sequence[bool]] | None = None,
) -> Any:
    """Declare a field with a default that holds a transform, or a mapping of transforms, in an `AbstractContainer`.

        class Guarded(mx.AbstractContainer):
            inner: mx.AbstractTransform = mx.required_part()
            guard: mx.AbstractTransform = mx.part(mx.Clip(1.0), state="guard_state")

    Args:
        default: default value of the field. Declare a required field with `required_part()`, which type checkers
            understand.
        default_factory: function that makes the default value.
        optional: whether the part may be left out, with None as its value.
        state: as in `required_part`.
        auxiliary: as in `required_part`.
        converter: as in `required_part`.
        receives: as in `required_part`.
    """
    # Equinox tells an argument that is absent from one that is None, so what was not given must be left out.
    settings = {"default": default, "default_factory": default_factory, "converter": converter or dataclasses.MISSING}
    settings = {name: x for name, x in settings.items() if x is not dataclasses.MISSING}
    metadata = {"part": state, "optional": optional, "auxiliary": auxiliary, "receives": receives}
    return eqx.field(metadata=metadata, **settings)


def check_part(what: str, x: Any) -> None:
    """Raise an error for a part that is not a transform; the message shows how to make it one."""
    if not isinstance(x, AbstractTransform):
        raise ValueError(f"{what} is not a modulax transform: {brief(x)}. {_remedy(x)}")


def check_optimizer(call: str, optimizer: Any, *others: Any) -> None:
    """Raise an error if a function did not get a transform and the parameters in this order.

    Args:
        call: the call as it should be written.
        optimizer: the argument for the transform.
        others: the other arguments that may have been confused with it.
    """
    name = call.partition("(")[0]
    if not isinstance(optimizer, AbstractTransform):
        if any(isinstance(x, AbstractTransform) for x in others):
            raise ValueError(f"`{name}` was given its arguments in another order: write `{call}`.")
        check_part(f"`{name}`: the optimizer", optimizer)
    if any(isinstance(x, (AbstractState, AbstractTransform)) for x in others):
        raise ValueError(f"`{name}` was given a state or a transform in place of the parameters: write `{call}`.")


def _remedy(x: Any) -> str:
    if inspect.isclass(x):
        return f"It is a class: make an instance, `{x.__name__}(...)`."
    if is_plain(x, list, tuple):
        if len(x) == 2 and all(callable(y) and not isinstance(y, AbstractTransform) for y in x):
            return "To make a pair of functions a transform, write `from_functions(init, update)`."
        return "Several transforms, one after the other, are a `Chain`: write `Chain(*parts)`."
    if isinstance(x, AbstractHyperparameters):
        return "A schedule takes the place of a number: `ScaleByLearningRate(schedule)`."
    if callable(getattr(x, "init", None)) and callable(getattr(x, "update", None)):
        return "If it is an optax transformation, wrap it: `from_optax(...)`."
    if callable(x):
        return "To make a function of the updates a transform, write `Stateless(function)`."
    if is_model(x):
        return "It holds arrays, like a model: parameters are given to `init(params)`."
    return "Give a transform such as `AdamW(1e-3)`."


class AbstractContainer(AbstractTransform):
    """A transform that holds others: declare them with `required_part()`, implement `init` and `update`.

        class HalfSteps(mx.AbstractContainer):
            inner: mx.AbstractTransform = mx.required_part()

            def init(self, params):
                return HalfStepsState(inner_state=self.inner.init(params))

            def update(self, updates, state, params=None, **extra):
                updates, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
                return jax.tree.map(lambda u: 0.5 * u, updates), HalfStepsState(inner_state)

    Pass `extra` on to the parts. In the class of the state, declare the fields that hold states of parts with
    `nested()`.
    """

    is_arraywise: ClassVar[bool] = False
    """Whether what it adds to its parts treats every array alike and alone, without random numbers, so that `Stacked`
    may hold it."""

    is_one_pass: ClassVar[bool] = False
    """Whether it adds at most a pass over its arrays to its parts, and no branch, so that gates compute it and select
    the results."""

    def each_part(self, state: State | None = None) -> Iterator[Part]:
        """Yield the parts in the order of the fields.

        Args:
            state: the state of this container; if given, each part comes with its own state.
        """
        for field in part_fields(self):
            value = getattr(self, field.name)
            where = field.metadata["part"]
            states: Any = None if state is None else where(state) if callable(where) else getattr(state, where)
            of_part = functools.partial(self._part, field)
            if isinstance(value, Mapping):
                for key, x in value.items():
                    # A chain stores no state for a stateless part.
                    yield of_part(key, x, None if states is None else states.get(key, EmptyState()))
            elif value is not None:
                yield of_part(None, value, states)

    def _part(self, field: dataclasses.Field, key: Any, transform: AbstractTransform, state: Any) -> Part:
        receives = field.metadata["receives"]
        receives = None if receives is None else functools.partial(receives, self, key)
        return Part(field.name, key, transform, state, field.metadata["auxiliary"], receives)

    @property
    def example_axes(self) -> tuple[int, ...]:
        """The batch axes of per-example gradients, if one of the parts takes such gradients; else empty."""
        return next((part.transform.example_axes for part in self.each_part() if part.transform.example_axes), ())

    def resolved(self, state: State) -> Self:
        """Return this container with every schedule that follows its step count replaced by its current value.

        These are its own schedules and those of parts that don't count steps themselves; other parts stay unchanged.
        They follow the field `count` of the state of a container with `clock = "steps"`.

        Args:
            state: the state of this container.
        """
        count = getattr(state, "count", None)
        return self if count is None or self.clock != "steps" else resolve(self, count)

    def at(self, state: State) -> Self:
        """Return this container with every schedule, its own and those of its parts, replaced by its current value.

        Args:
            state: the state of this container.
        """
        now = self.resolved(state)
        fields: dict[str, Any] = {}
        for part in now.each_part(state):
            at = part.transform.at(part.state)
            if part.key is None:
                fields[part.field] = at
            else:
                # An `OrderedDict` stays one, because JAX sorts the keys of a plain dict when it unflattens one.
                fields.setdefault(part.field, type(getattr(now, part.field))())[part.key] = at
        # Not `replace`, which would convert and check every Module on the way to a part again.
        return with_fields(now, **fields)

    def eval_params(self, state: State, params: P) -> P:
        """Return the evaluation parameters of the parts, applied one after the other.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return _eval_parts(self.at(state), state, params)

    def _check_parts(self) -> None:
        cls = type(self)
        if not part_fields(self) and cls.each_part is AbstractContainer.each_part:
            raise ValueError(
                f"`{cls.__name__}` is a container without parts. Declare one, `inner: ... = required_part()`."
            )
        _check_each_part(self)


def part_fields(module: AbstractTransform) -> list[dataclasses.Field]:
    """The fields that are declared with `required_part()` or `part()`."""
    return [field for field in dataclasses.fields(module) if "part" in field.metadata]


def _check_each_part(module: AbstractTransform) -> None:
    """Raise an error if a part is neither a transform nor a mapping of transforms."""
    name = type(module).__name__
    for field in part_fields(module):
        value = getattr(module, field.name)
        # A mapping in the field of a single part is reported by the name of the field, and not by its keys.
        is_single = isinstance(field.type, type) and issubclass(field.type, AbstractTransform)
        if isinstance(value, Mapping) and not is_single:
            for key, x in value.items():
                check_part(f"`{name}`: the part {key!r}", x)
        elif value is not None or not field.metadata["optional"]:
            check_part(f"`{name}({field.name}=...)`", value)


def _eval_parts(transform: AbstractTransform, state: State, params: Params) -> Params:
    """The evaluation parameters of a transform's parts; its schedules must be replaced by their current values."""
    like = params  # of which `Partition` finds all labels together
    for part in transform.each_part(state):
        if part.auxiliary:
            continue
        mask = None if part.receives is None else part.receives(like)
        if mask is None:
            params = part.transform.eval_params(part.state, params)
        else:
            params = merge(params, part.transform.eval_params(part.state, select(params, mask)), mask)
    return params


def in_dtypes_of(params: Params, tree: PyTree, owner: str) -> Params:
    """Return a tree of the state in the structure and the dtypes of the parameters, and where these are."""
    leaves, treedef = jtu.tree_flatten(params)
    values, _ = align(tree, params, owner)
    # The state may be wider than the parameters, and the model expects the dtypes of its parameters.
    return treedef.unflatten([typed_like(x.astype(p.dtype), p) for x, p in zip(values, leaves, strict=True)])


class OptimizerState(AbstractState):
    """State of every optimizer, and of `Scheduled`: step count, state of the transform, and states of schedules.

    Schedules follow the step count `step`. `schedule_states` holds the states of stateful schedules by the dotted path
    of the field that holds each, or None if there are none.
    """

    step: Count = shared(metric=True)
    inner: State = nested()
    schedule_states: dict[str, State] | None = shared(None)


class AbstractOptimizer(AbstractTransform):
    """A named optimizer: fields for its hyperparameters, and `transform()`, which composes it from transforms.

        class Momentum(AbstractOptimizer):
            learning_rate: Number = required_number()
            decay: Number = number(0.9)

            def transform(self):
                return Chain(Trace(self.decay), ScaleByLearningRate(self.learning_rate))

    At every update, each schedule in the fields is replaced by its value at that step before `transform()` is called,
    so that every hyperparameter of every optimizer can be a schedule.
    """

    clock: ClassVar[Clock] = "keeper"
    _negates = True
    _keeps = "gradients"

    @abc.abstractmethod
    def transform(self) -> AbstractTransform:
        """Return the transform that implements this optimizer; schedules in its fields have been replaced by values."""

    def _part(self, cls: type[T], **values: Any) -> T:
        """Return a transform with the hyperparameters that this optimizer has under the same names.

        Args:
            cls: the class of the transform.
            values: arguments that differ, or that this optimizer does not have.
        """
        own = self.__dataclass_fields__  # with the constants of the class, which `dataclasses.fields` leaves out
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(cls) if field.name in own}
        return cls(**same | values)

    def _check_parts(self) -> None:
        _check_each_part(self)  # transforms in the fields, which `transform()` uses

    def init(self, params: Params) -> OptimizerState:
        """Return the initial state: the state of `transform()`, and a step count of zero."""
        return start_counted(self, lambda now: now.transform().init(params))

    def update(
        self, updates: Updates, state: OptimizerState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptimizerState]:
        """Run one step of `transform()`, with the values of the hyperparameters at this step."""
        return step_counted(
            self, state, extra, lambda now: now.transform().update(updates, state.inner, params, **extra)
        )

    def at(self, state: OptimizerState) -> Self:
        """Return this optimizer with every schedule replaced by its value at the next step.

        Args:
            state: the state of this optimizer.
        """
        now = with_current_values(self, state.step, state.schedule_states)
        parts = {field.name: getattr(now, field.name) for field in part_fields(now)}
        if not parts:
            return now
        inside = list(_all_parts(now.transform(), state.inner))
        # `transform()` passes the transforms in the fields on, so that they are recognized by identity.
        fields = {name: p.transform.at(p.state) for name, x in parts.items() for p in inside if p.transform is x}
        return with_fields(now, **fields)

    def each_part(self, state: OptimizerState | None = None) -> Iterator[Part]:
        """Yield `transform()`, with the values of schedules at the next step, or at the first if no state is given.

        Args:
            state: the state of this optimizer.
        """
        now = with_current_values(self, 0, schedule_states(self)) if state is None else self.at(state)
        with tracing():  # its numbers were checked
            transform = now.transform()
        yield Part("transform", None, transform, None if state is None else state.inner)

    def eval_params(self, state: OptimizerState, params: P) -> P:
        """Return the evaluation parameters of `transform()`."""
        return _eval_parts(self, state, params)


def start_counted(transform: T, init: Callable[[T], State]) -> OptimizerState:
    """Return the initial state of an optimizer or of `Scheduled`, whose schedules have the values of the first step.

    Args:
        transform: the transform whose fields may be schedules.
        init: a function of it with their values, which returns the state inside.
    """
    step, states = no_steps(), schedule_states(transform)
    return OptimizerState(step, init(with_current_values(transform, step, states)), states)


def step_counted(
    transform: T, state: OptimizerState, extra: Mapping[str, Any], update: Callable[[T], tuple[Updates, State]]
) -> tuple[Updates, OptimizerState]:
    """Run one step of an optimizer or of `Scheduled`, whose schedules have the values of this step.

    Args:
        transform: the transform whose fields may be schedules.
        state: the state before the step.
        extra: the extra arguments of `update`.
        update: a function of the transform with their values, which returns the updates and the new state inside.
    """
    updates, inner = update(with_current_values(transform, state.step, state.schedule_states, extra))
    # The value of a schedule at a step is that of the state before it, as in optax.
    states = advance(transform, state.step, state.schedule_states, extra)
    return updates, OptimizerState(safe_increment(state.step), inner, states)


def _all_parts(transform: AbstractTransform, state: State) -> Iterator[Part]:
    """Iterate over the parts of a transform, and over theirs, with their states."""
    for part in transform.each_part(state):
        yield part
        yield from _all_parts(part.transform, part.state)
