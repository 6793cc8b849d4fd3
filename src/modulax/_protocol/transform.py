"""The protocol: `init`, `update`, and what every transform does around them.

A subclass writes `init` and `update` as plain functions of trees. `__init_subclass__` puts an entry point in the place
of each (`entry.py`), with what has to happen at its boundary (`boundary.py`). A transform that is made of others yields
them in `each_part`: a container from its fields, an optimizer from its `transform()`. Every question about what is
inside goes through that method: which papers to cite, which leaves decay, where per-example gradients are taken.
"""

import abc
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.checks import check_extra
from .._support.module import AbstractState
from .._support.types import Params, State, Updates
from ..tree._align import paired
from ..tree._math import trainable
from .apply_updates import apply_updates
from .boundary import EvalBoundary, InitBoundary, UpdateBoundary, with_arrays
from .entry import Program, as_written, entry
from .hyperparameters import AbstractHyperparameters
from .lookahead_params import LookaheadParams
from .schedule import has_schedule, has_stateful_schedule

Clock = Literal["caller", "steps", "pace", "keeper"]


class EmptyState(AbstractState):
    """The state of a transform that has none."""


def init_empty_state(params: Params) -> EmptyState:
    """The `init` of a transform without state.

    Args:
        params: the parameters, which do not matter.
    """
    del params
    return EmptyState()


class Part(NamedTuple):
    """A transform inside another one.

    Args:
        field: the field that holds it.
        key: its key, if the field holds a mapping of transforms, else None.
        transform: the transform.
        state: its state, if the state of the whole was given, else None.
        auxiliary: whether its updates reach the parameters only through other parts.
    """

    field: str
    key: Hashable | None
    transform: "AbstractTransform"
    state: Any = None
    auxiliary: bool = False


class AbstractTransform(AbstractHyperparameters):
    """A gradient transformation: a Module whose fields are its hyperparameters.

    Write `init(params)` and `update(updates, state, params=None, **extra)` as plain functions of trees in which every
    leaf is a floating or complex array, and return a state that is a Module of arrays. Called by a user, both run
    compiled: hyperparameters are traced, so that a changed one never retraces; the rest of a model (functions, flags,
    integer arrays) passes them by. Called by a container they are part of the container's program.

    A rule on one array needs no tree code: see `AbstractLeafwise`. A transform that holds others is an
    `AbstractContainer`.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The arguments that `update` cannot do without: `"params"`, and extra arguments such as `"value"`, the loss."""

    clock: ClassVar[Clock] = "caller"
    """Which steps the schedules inside follow.

    `"caller"`: those of whatever counts steps around it. `"steps"`: its own count of the calls of `update`. `"pace"`:
    a count of its own, in which not every call is a step. `"keeper"`: like `"steps"`, and its state also keeps the
    states of stateful schedules.
    """

    takes_complex: ClassVar[bool] = True
    """Whether it is defined for complex parameters; if not, `init` refuses them by its name."""

    cites: ClassVar[tuple[str, ...]] = ()
    """Keys in the bibliography, for `modulax.citation`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Every class has entry points of its own, inherited methods too, so that a profile names the class that ran.
        for name, boundary in (("init", InitBoundary), ("update", UpdateBoundary), ("eval_params", EvalBoundary)):
            method = as_written(getattr(cls, name))
            is_abstract = getattr(method, "__isabstractmethod__", False)
            if not is_abstract and method is not AbstractTransform.__dict__[name]:
                setattr(cls, name, entry(boundary(method, cls.__name__)))

    @property
    def example_axes(self) -> tuple[int, ...]:
        """The axes of the examples, if `update` takes per-example updates and returns them without these axes."""
        return ()

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """Return the state for these parameters, before the first step."""

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Return the transformed updates, each of the dtype it came with, and the new state."""

    def step(
        self, grads: Updates, state: State, params: Params, *, donate: bool = False, **extra: Any
    ) -> tuple[Params, State]:
        """Do one step of training as one program: `update`, then apply the updates to the parameters.

        Args:
            grads: the gradients.
            state: the optimizer's state.
            params: the parameters, or the whole model.
            donate: whether the buffers of `params` and `state` may be reused for the result. They must not be used
                again afterwards; a large model then needs no second copy, and the step is faster.
            extra: handed to `update`.

        Returns:
            the new parameters (the whole model, if that was given) and the new state.
        """
        program = _step_program(type(self), donate)
        arrays, state = program(self, grads, state, params, extra)
        return with_arrays(params, arrays), state

    def eval_params(self, state: State, params: Params) -> Params:
        """Return the evaluation parameters: an average if the optimizer keeps one, else the parameters themselves.

        A transform with a second set of parameters, such as Schedule-Free, holds it in its state and returns it here;
        containers ask their parts. Applied to its own result, it changes nothing.

        Args:
            state: the optimizer's state.
            params: the parameters that are trained, or the whole model.
        """
        del state
        return params

    def each_part(self, state: State | None = None) -> Iterator[Part]:
        """Yield the transforms that this one is made of, each with its state if the state of the whole is given."""
        del state
        return iter(())

    def seen_by(self, part: Part, tree: PyTree) -> Sequence[bool] | None:
        """Return which leaves of a tree like the parameters a part is given, in JAX's order; None for all."""
        del part, tree

    def at(self, state: State) -> "AbstractTransform":
        """Return this transform with every schedule replaced by its value at the next step."""
        del state
        return self

    def hyperparameters(self, state: State | None = None) -> dict[str, Any]:
        """Return every hyperparameter by its dotted path.

        Args:
            state: if given, schedules are replaced by their values at the next step.
        """
        module = self if state is None else self.at(state)
        return AbstractHyperparameters.hyperparameters(module)

    def freezes(self, tree: Params) -> Sequence[bool] | None:
        """Return which leaves it keeps from changing whatever their gradient is, in JAX's order; None for no leaf.

        `describe` shows these parameters as frozen.
        """
        del tree

    # What the entry points call. Few classes have a reason to override these.

    def check_params(self, params: Params) -> None:
        """Refuse parameters of a kind that only some transforms can train."""
        if isinstance(params, LookaheadParams):
            raise ValueError(
                f"`{type(self).__name__}` was given `LookaheadParams`, which only a `Lookahead` itself takes. Put "
                f"`Lookahead` outermost, as in `Lookahead(Chain(...), 5, 0.5)`, or give plain parameters: `Lookahead` "
                f"then keeps the slow ones in its state, and `eval_params(state, params)` returns them."
            )

    def check_call(self, updates: Updates, params: Params | None, extra: Mapping[str, Any]) -> None:
        """Refuse a call that lacks an argument, or a schedule in a field for which nobody counts the steps.

        The updates None, which are the tree without a leaf, need no parameters.
        """
        name = type(self).__name__
        if "params" in self.needs and params is None and updates is not None:
            raise ValueError(f"`{name}` needs `params`: call `update(updates, state, params)`.")
        check_extra(f"`{name}`", extra_arguments(self), extra)
        if self.clock != "keeper":
            _refuse_schedules(self)

    def align_params(self, params: Params, updates: Updates, owner: str) -> Params:
        """Return the parameters in the structure of the updates, refused unless paths and shapes agree."""
        self.check_params(params)
        return paired(params, updates, owner, per_example=self.example_axes)


def extra_arguments(module: Any) -> list[str]:
    """The extra arguments among those that a transform, a measure or a stateful schedule needs."""
    return [argument for argument in module.needs if argument != "params"]


def everything_in(transform: AbstractTransform) -> Iterator[AbstractTransform]:
    """Yield a transform and all that it is made of, from the outside to the inside."""
    yield transform
    for part in transform.each_part():
        yield from everything_in(part.transform)


def zeros_returned(transform: AbstractTransform, updates: Updates) -> Updates:
    """Zeros like what the transform returns for these updates: without the axes of the examples."""
    axes = transform.example_axes
    return jtu.tree_map(lambda u: jnp.zeros(np.delete(u.shape, axes) if axes else u.shape, u.dtype), updates)


def _refuse_schedules(transform: AbstractTransform) -> None:
    """Refuse a schedule of the step where nobody counts the steps, and a stateful one where nobody keeps its state."""
    name = type(transform).__name__
    for field in [f.name for f in transform.__dataclass_fields__.values() if f.metadata.keys() & {"number", "numbers"}]:
        value = getattr(transform, field)
        remedy = f"Write `Scheduled({name}({field}=...))`, or use the schedule in an optimizer such as `AdamW`."
        if has_stateful_schedule(value):
            if transform.clock == "pace":
                remedy = f"A schedule of the step can be used there, since `{name}` counts its steps."
            raise ValueError(
                f"`{name}({field}=...)` is a stateful schedule, and `{name}` keeps no state for it. {remedy}"
            )
        if transform.clock == "caller" and has_schedule(value):
            raise ValueError(
                f"`{name}({field}=...)` is a schedule, and `{name}` alone does not count the steps. {remedy}"
            )


class AbstractStatelessTransform(AbstractTransform):
    """A transform without state: write `apply(updates, params, **extra)`, on trees."""

    @abc.abstractmethod
    def apply(self, updates: Updates, params: Params | None, **extra: Any) -> Updates:
        """Return the transformed updates."""

    def init(self, params: Params) -> EmptyState:
        """Return the empty state."""
        del params
        return EmptyState()

    def update(
        self, updates: Updates, state: EmptyState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, EmptyState]:
        """Return the result of `apply`, and the empty state."""
        return self.apply(updates, params, **extra), state


@functools.cache
def _step_program(cls: type, donate: bool) -> Program:
    def run(transform, grads, state, params, extra):
        grads = trainable(grads)
        trained = transform.align_params(trainable(params), grads, f"{cls.__name__}.step")
        updates, state = transform.update(grads, state, trained, **extra)
        return jtu.tree_leaves(apply_updates(params, updates)), state

    return Program(run, f"{cls.__name__}.step", models=(0, 2), donated=(1, 2) if donate else None)
