"""The base class of all transforms: `init`, `update`, and everything that the library does around them.

A subclass writes `init` and `update` as plain functions of trees. `__init_subclass__` replaces each of them by an entry
point (`entry.py`), which compiles it, and filters and checks its arguments. A transform that is made of
others yields them in `each_part`: a container from its fields, an optimizer from its `transform()`. Everything that
depends on the transforms inside uses that method: citations, `describe`, evaluation parameters, per-example gradients.
"""

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .._support.arithmetic import common_dtype, default_float, is_narrower
from .._support.checks import check_extra, check_option
from .._support.flax_nodes import is_variable, without_variables
from .._support.module import AbstractState
from .._support.slots import metrics
from .._support.types import P, Params, S, State, Updates
from .._support.wrong_calls import result_is_indexed
from ..tree._math import zeros_without
from .entry import BOUNDARIES, as_written, entry, explained, wrong_state
from .extra_arguments import everything_in, extra_arguments, required_arguments
from .frozen import numbers_with_paths
from .hyperparameters import AbstractHyperparameters, Hyperparameters
from .schedule import has_schedule, has_stateful_schedule
from .step import DonatedStep, Move, step_program

T = TypeVar("T")

Clock = Literal["caller", "steps", "pace", "keeper"]

# In `_why_last`: not even a `Freeze` may follow.
KEEPS_PARAMETERS = "keeps parameters of its own"


class EmptyState(AbstractState):
    """State of a stateless transform."""


def is_empty(state: State) -> bool:
    """Whether this is the state of a transform that has none."""
    return isinstance(state, EmptyState)


class Part(NamedTuple):
    """A transform inside another one, as `each_part` yields it.

    Args:
        field: name of the field that holds the transform.
        key: its key, if the field holds a mapping of transforms, else None.
        transform: the transform.
        state: its state, if `each_part` was given the state of the whole, else None.
        auxiliary: whether its updates affect the parameters only through other parts.
        receives: function of a tree like the parameters that returns which leaves it receives, in JAX's order; None if
            it receives all.
    """

    field: str
    key: Hashable | None
    transform: "AbstractTransform"
    state: Any = None
    auxiliary: bool = False
    receives: Callable[[PyTree], Sequence[bool]] | None = None

    def _received(self, tree: PyTree) -> list[bool]:
        """Return which leaves of a tree like the parameters it receives, in JAX's order."""
        return [True] * len(jtu.tree_leaves(tree)) if self.receives is None else list(self.receives(tree))


class Effect(NamedTuple):
    """What a transform does to each leaf beyond what its fields tell, for `describe`.

    Args:
        factors: the number by which it multiplies each update, in JAX's order; None if it does more. A factor may be a
            schedule, a tuple of factors along an axis of the leaf, or the transform itself, if its state holds it in a
            field declared with `shared(factor=True)`.
        frozen: which leaves never change, in JAX's order; None if all may.
        sizes: about the size of the entries of each update for a learning rate of 1, in JAX's order, None where it is
            not known; None for the sizes that Adam has, about 1.
        is_fine: whether steps below the spacing of a low-precision parameter add up, because its state is finer or it
            rounds at random. Else `init` warns of a learning rate that is too small for the dtype.
        warnings: sentences on what is probably a mistake with these parameters, of which `init` warns.
        suspects: sentences on what is right now and then, for `describe` and `check`.
        notes: sentences for `describe` alone.
    """

    factors: Sequence[Any] | None = None
    frozen: Sequence[bool] | None = None
    sizes: Sequence[float | None] | None = None
    is_fine: bool = False
    warnings: Sequence[str] = ()
    suspects: Sequence[str] = ()
    notes: Sequence[str] = ()


class AbstractTransform(AbstractHyperparameters):
    """A gradient transformation: a Module whose fields are its hyperparameters.

    Implement `init(params)` and `update(updates, state, params=None, **extra)` as plain functions of trees in which
    every leaf is a floating-point or complex array, and return a state that is a Module of arrays. When a user calls
    them, both run compiled: hyperparameters are traced, so that changing one never retraces, and other leaves of a
    model (functions, flags, integer arrays) are filtered out. When a container calls them, they are part of the
    container's program.

    For a rule that treats every array alike, subclass `AbstractLeafwise`, which needs no tree code. For a transform
    that holds others, subclass `AbstractContainer`.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """What `update` of this class requires: `"params"`, extra arguments such as `"value"`, the loss, and `"real"`
    parameters. With those of all transforms inside, the extra arguments are in `required_arguments`."""

    clock: ClassVar[Clock] = "caller"
    """Which step count the schedules inside follow.

    `"caller"`: the count of the transform around it. `"steps"`: its own count of the calls of `update`. `"pace"`: its
    own count, in which not every call is a step. `"keeper"`: like `"steps"`, and its state also keeps the states of
    stateful schedules.
    """

    # What its updates are, a container's without regard to its parts: those that it is given; gradients where it is
    # given gradients, as those of a clip are; in the direction of those of its parts; or anything else.
    _keeps: ClassVar[Literal["updates", "gradients", "direction", "nothing"]] = "nothing"
    _negates: ClassVar[bool] = False  # whether its updates are against the gradients, as those of an optimizer are
    _gives_gradients: ClassVar[bool] = True  # whether its parts get what it gets, and not in another form
    # Why nothing may change its updates afterwards, but for a `Freeze` of whole parameters.
    _why_last: ClassVar[str] = ""

    _operators: ClassVar[tuple[str, ...]] = ("__len__", "__contains__")
    _listed: ClassVar[tuple[str, ...]] = (
        *AbstractHyperparameters._listed,
        *("at", "eval_params", "init", "jit_step", "metrics", "step", "update"),
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Every class gets its own entry points, also for inherited methods, so that profiles name the class that ran.
        for name, boundary in BOUNDARIES.items():
            method = as_written(getattr(cls, name))
            is_abstract = getattr(method, "__isabstractmethod__", False)
            # The inherited `eval_params` returns its argument, which needs no program.
            if not is_abstract and method is not AbstractTransform.__dict__[name]:
                setattr(cls, name, entry(boundary(method, cls.__name__)))
        if "at" in vars(cls):
            cls.at = explained(cls.at)

    @property
    def example_axes(self) -> tuple[int, ...]:
        """The batch axes of per-example gradients, if `update` takes such gradients; else empty."""
        return ()

    @property
    def required_arguments(self) -> tuple[str, ...]:
        """The extra arguments that a step requires, here and in all transforms, schedules and measures inside."""
        return tuple(required_arguments(self))

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """Return the initial state.

        If no leaf of the parameters is a floating-point or complex array, the call is an error, unless a caller adds
        `allow_empty=True`: a container may give a part nothing to train.

        Args:
            params: the parameters, or the whole model.
        """

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Return the transformed updates, each in the dtype that it had, and the new state.

        Args:
            updates: the gradients, or the updates that the previous transform returned.
            state: the state, from `init` or from the previous step.
            params: the current parameters, or the whole model; required if `needs` lists `"params"`.
            extra: further arguments, such as the loss, `value=...`; those in `needs` are required.
        """

    @explained
    def step(self, grads: Updates, state: S, params: P, *, donate: bool = False, **extra: Any) -> tuple[P, S]:
        """Run one training step as one compiled program: `update`, then apply the updates to the parameters.

        Args:
            grads: the gradients.
            state: the state of the optimizer.
            params: the parameters, or the whole model.
            donate: whether to donate the buffers of `params` and `state` to the result. They must not be used
                afterwards. This avoids a second copy of the parameters and of the state, and is faster.
            extra: extra arguments of `update`, such as the loss, `value=...`.

        Returns:
            the new parameters (the whole model, if that was given) and the new state.

        Raises:
            ValueError: if a required argument is missing, or if the gradients don't fit the parameters.
        """
        check_option(f"{type(self).__name__}.step", "donate", donate, (True, False))
        return step_program(type(self), donate)(self, grads, params, state, extra)

    def jit_step(self) -> DonatedStep:
        """Return `step` with the state and the parameters donated, as a function that can be compiled ahead of time.

            step = optimizer.jit_step()
            params, state = step(grads, state, params)
            step.lower(grads, state, params).compile().memory_analysis()

        A call is equivalent to `step(..., donate=True)`. `lower` also accepts shapes with shardings instead of arrays,
        including those of devices that you don't have. Use it instead of `jax.jit(optimizer.step, donate_argnums=(1,
        2))`, in which JAX writes the parameters into the buffers of a moment: `step` returns them before the state.
        """
        return DonatedStep(self)

    def eval_params(self, state: State, params: P) -> P:
        """Return the evaluation parameters: an average of the weights if the optimizer keeps one, else the parameters.

        A transform with a second set of parameters, such as `ScheduleFree` or `Lookahead`, keeps it in its state and
        returns it here; a container calls `eval_params` of its parts. The method is idempotent: applied to its own
        result, it changes nothing.

        Args:
            state: the state of the optimizer.
            params: the parameters that are trained, or the whole model.
        """
        if message := wrong_state(f"{type(self).__name__}.eval_params", type(self).init, state, params):
            raise ValueError(message)
        return params

    def each_part(self, state: State | None = None) -> Iterator[Part]:
        """Yield the transforms that this one is made of.

        Args:
            state: the state of this transform; if given, each part comes with its own state.
        """
        del state
        return iter(())

    def at(self, state: State) -> "AbstractTransform":
        """Return this transform with every schedule replaced by its value at the next step.

        Args:
            state: the state of this transform.
        """
        del state
        return self

    def _completed(self) -> "AbstractTransform":
        """Return this transform with the defaults that follow from its schedules, which have no values yet."""
        return self

    @result_is_indexed
    @explained
    def hyperparameters(self, state: State | None = None) -> dict[str, Any]:
        """Return every hyperparameter by its dotted path.

        Args:
            state: if given, schedules are replaced by their values at the next step, and factors that are kept in the
                state are listed too, such as `scale` of `ReduceOnPlateau`, by which it multiplied the last updates.
        """
        if state is None:
            return AbstractHyperparameters.hyperparameters(self)
        state = without_variables(state)
        factors = metrics.module.factors_in(self, state)
        return Hyperparameters([*numbers_with_paths(self.at(state)), *factors])

    @result_is_indexed
    @explained
    def metrics(self, state: State) -> dict[str, Any]:
        """Return scalars for a log, by short names: the learning rate in force, measurements, counters.

            wandb.log({"loss": loss, **optimizer.metrics(state)})

        They are: every learning rate and every other hyperparameter that follows a schedule, with its value in the step
            that led to this state (in the first step, if there was none); the measurements of `Monitor`; and fields of
            states declared with `shared(metric=True)`, such as the step count, the number of skipped steps and
        the factor of `ReduceOnPlateau`. Names that occur several times are prefixed by the name of the part, such as
        `body.learning_rate`. The learning rates of a multiplier, including all later factors, are prefixed by its
        pattern, as `embed.*.learning_rate`; with groups or frozen parameters, they are listed only if the state has a
        moment. A stateful schedule, and arithmetic with one, has its value at the next step.

        Inside `jit` it adds only the schedules to the program.

        Args:
            state: the state of this transform.
        """
        return metrics.module.metrics_of(self, without_variables(state))

    def __getitem__(self, key: Any) -> Any:
        """Raise an error that says where the value is."""
        start = f"`{type(self).__name__}` cannot be indexed."
        if isinstance(key, str) and is_variable(getattr(self, key, None)):
            raise TypeError(f"{start} Its fields are variables: write `optimizer.hyperparameters.{key}[...]`.")
        if isinstance(key, int):  # by which Python unpacks too
            raise TypeError(
                f"{start} Python cannot unpack it: for the pair of functions of optax, write `to_optax(...)`."
            )
        raise TypeError(f'{start} Write `optimizer.hyperparameters()["learning_rate"]` to read a hyperparameter.')

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Raise an error that says which method to call."""
            raise TypeError(f"`{type(self).__name__}` is not a function. Write `optimizer.step(grads, state, params)`.")

    def __or__(self, other: Any) -> Any:
        """Raise an error that says how transforms are composed."""
        if not isinstance(other, AbstractTransform):
            return NotImplemented
        first, second = (f"{type(x).__name__}(...)" for x in (self, other))
        call = f"Chain({first}, {second})"
        if self._negates and other._negates:  # one after the other would be a mistake
            call = f'Partition({{"a": {first}, "b": {second}}}, labels)'
        raise TypeError(f"Transforms are composed by a `Chain`, or in groups by a `Partition`: write `{call}`.")

    __add__ = __rshift__ = __matmul__ = __or__

    def __mul__(self, other: Any) -> Any:
        """Raise an error that says how updates are scaled."""
        if isinstance(other, AbstractTransform):
            return self | other
        if not isinstance(other, (int, float, np.generic, np.ndarray)):
            return NotImplemented
        raise TypeError(f"To multiply the updates by a number, write `Chain({type(self).__name__}(...), Scale(x))`.")

    __rmul__ = __mul__

    def _why_not_a_number(self) -> str:
        """Return why this transform cannot be the value of a hyperparameter."""
        name = type(self).__name__
        return f"It is a transform. To run one after the other, write `Chain(..., {name}(...))`."

    # Called by the library itself. Few classes have a reason to override these.

    def _effect(self, tree: Params) -> "Effect":
        """Return what `describe` cannot read from the fields.

        Args:
            tree: the parameters, or a tree like them.
        """
        del tree
        return Effect()

    def _take_step(self, updates: Updates, state: State, move: Move[T]) -> tuple[T, State]:
        """Run `update`, and return `move.apply(updates)` and the new state, for `step`.

        A transform that skips steps overrides it: updates that are applied in the branch of a `cond` are never stored.

        Args:
            updates: the gradients.
            state: the state of this transform.
            move: the other arguments of `update`, and what becomes of the updates.
        """
        updates, new = self.update(updates, state, move.params, **move.extra)
        return move.apply(updates), new

    def _check_call(self, updates: Updates, params: Params | None, extra: Mapping[str, Any]) -> None:
        """Raise an error if a required argument is missing, or if a field holds a schedule and no steps are counted.

        If `updates` is None, the tree without leaves, no parameters are required.
        """
        name = type(self).__name__
        if "params" in self.needs and params is None and updates is not None:
            raise ValueError(f"`{name}` needs `params`: call `update(updates, state, params)`.")
        check_extra(f"`{name}`", extra_arguments(self), extra)
        if self.clock != "keeper":
            _refuse_schedules(self)


def keeps_gradients(transform: AbstractTransform) -> bool:
    """Return whether updates of a transform, but not of its parts, are gradients where it is given gradients."""
    return transform._keeps in ("updates", "gradients")


def update_dtypes(*transforms: AbstractTransform) -> list[DTypeLike]:
    """Return every `update_dtype` of the transforms and of those inside them."""
    dtypes = [getattr(t, "update_dtype", None) for transform in transforms for t in everything_in(transform)]
    return [dtype for dtype in dtypes if dtype is not None]


def in_dtype_of(like: Array, x: Array, wide: Sequence[DTypeLike]) -> Array:
    """Return a new update in the dtype of the given one, unless a transform has widened it.

    Args:
        like: the given update.
        x: the new one.
        wide: the `update_dtypes` of the transforms that made it.
    """
    return x if wide and x.dtype == common_dtype(like.dtype, *wide) else x.astype(like.dtype)


def zeros_returned(
    transform: AbstractTransform, updates: Updates, state: State, params: Params | None, extra: Mapping[str, Any]
) -> Updates:
    """Zeros like the transform's result: without batch axes of examples, on the same devices, in the same dtypes.

    Where the result is wider than the update, as in `MasterWeights`, they are -0.0, because adding 0.0 would change the
    bits of a parameter that is -0.0.
    """
    zeros = zeros_without(transform.example_axes, updates)
    # No transform widens updates in the default float dtype, and these are not traced a second time.
    if not any(is_narrower(z.dtype, default_float()) for z in jtu.tree_leaves(zeros)):
        return zeros
    # Traced and not computed: only the dtypes are needed.
    result, _ = jax.eval_shape(lambda: transform.update(updates, state, params, **extra))
    return jtu.tree_map(lambda zero, x: zero if zero.dtype == x.dtype else -zero.astype(x.dtype), zeros, result)


def _refuse_schedules(transform: AbstractTransform) -> None:
    """Raise an error for a schedule if no steps are counted, and for a stateful one if its state is not kept."""
    name = type(transform).__name__
    for field in [f.name for f in transform.__dataclass_fields__.values() if f.metadata.keys() & {"number", "numbers"}]:
        value = getattr(transform, field)
        remedy = f"Write `Scheduled({name}({field}=...))`, or use the schedule in an optimizer such as `AdamW`."
        if has_stateful_schedule(value):
            if transform.clock == "pace":
                remedy = f"Use a schedule of the step there: `{name}` counts its steps."
            raise ValueError(
                f"`{name}({field}=...)` is a stateful schedule, and `{name}` keeps no state for it. {remedy}"
            )
        if transform.clock == "caller" and has_schedule(value):
            raise ValueError(
                f"`{name}({field}=...)` is a schedule, and `{name}` on its own does not count steps. {remedy}"
            )


class AbstractStatelessTransform(AbstractTransform):
    """A stateless transform: implement `apply(updates, params, **extra)`, on trees."""

    @abc.abstractmethod
    def apply(self, updates: Updates, params: Params | None, **extra: Any) -> Updates:
        """Return the transformed updates.

        Args:
            updates: the gradients, or the updates that the previous transform returned.
            params: the current parameters, or None if `update` was called without them.
            extra: the extra arguments of `update`.
        """

    def init(self, params: Params) -> EmptyState:
        """Return the empty state."""
        del params
        return EmptyState()

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Return the result of `apply`, and the empty state."""
        return self.apply(updates, params, **extra), state
