"""The protocol: `init`, `update`, and what every transform does at its boundary."""

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.arithmetic import at_least_float32
from .._support.checks import check_extra, listing
from .._support.module import AbstractState
from .._support.types import Params, State, Updates
from ..tree._align import misfit, paired
from ..tree._math import trainable
from ..tree._paths import leaf_paths, leaves_with_paths, longest_prefix
from .entry import Entry, Program
from .hyperparameters import ARRAY_TYPES, AbstractHyperparameters
from .lookahead_params import LookaheadParams, single
from .schedule import has_schedule, has_stateful_schedule

_MISSING = object()


class EmptyState(AbstractState):
    """The state of a transform that has none."""


def init_empty_state(params: Params) -> EmptyState:
    """The `init` of a transform without state.

    Args:
        params: the parameters, which do not matter.
    """
    del params
    return EmptyState()


def check_call(
    transform: "AbstractTransform", updates: Updates, params: Params | None, extra: Mapping[str, Any]
) -> None:
    """Refuses an update that lacks the parameters or an extra argument, or a schedule where nobody counts the steps.

    Where the updates are None, which is the tree without a leaf, so may the parameters be.
    """
    name = type(transform).__name__
    if transform.needs_params and params is None and updates is not None:
        raise ValueError(f"`{name}` needs `params`: call `update(updates, state, params)`.")
    check_extra(f"`{name}`", transform.needs_extra, extra)
    if not transform.keeps_schedules:
        _refuse_schedules(transform)


def _refuse_schedules(transform: "AbstractTransform") -> None:
    """Refuses a schedule of the step where nobody counts the steps, and a stateful one where nobody keeps its state."""
    name = type(transform).__name__
    for field in [f.name for f in transform.__dataclass_fields__.values() if f.metadata.keys() & {"number", "numbers"}]:
        value = getattr(transform, field)
        remedy = f"Write `Scheduled({name}({field}=...))`, or use the schedule in an optimizer such as `AdamW`."
        if has_stateful_schedule(value):
            if transform.keeps_own_pace:
                remedy = f"A schedule of the step may stand there, since `{name}` counts its steps."
            raise ValueError(
                f"`{name}({field}=...)` is a stateful schedule, and `{name}` keeps no state for it. {remedy}"
            )
        if not transform.counts_steps and has_schedule(value):
            raise ValueError(
                f"`{name}({field}=...)` is a schedule, and `{name}` alone does not count the steps. {remedy}"
            )


def refuse_complex(transform: "AbstractTransform", params: Params) -> None:
    """Refuses complex parameters, by the name of the transform that is not defined for them."""
    found = [path for path, p in leaves_with_paths(params) if jnp.issubdtype(p.dtype, jnp.complexfloating)]
    if found:
        raise ValueError(
            f"`{type(transform).__name__}` is not defined for complex parameters, and {listing(found)} is complex. "
            f"Train the real and the imaginary part as two parameters, or take an optimizer that is."
        )


def axes_of_examples(transform: "AbstractTransform") -> tuple[int, ...]:
    """The axes of examples in the updates that it, or a transform inside of it, takes; none for those of the whole."""
    if transform.takes_examples:
        return transform.example_axes
    parts = jtu.tree_leaves(transform, is_leaf=lambda x: x is not transform and isinstance(x, AbstractTransform))
    inside = (axes_of_examples(part) for part in parts if isinstance(part, AbstractTransform))
    return next(filter(None, inside), ())


def refuse_pair(transform: "AbstractTransform", params: Params) -> None:
    """Refuses the pair of parameters that `Lookahead` alone knows how to train."""
    if isinstance(params, LookaheadParams):
        raise ValueError(
            f"`{type(transform).__name__}` was given `LookaheadParams`, which only a `Lookahead` itself takes. Put "
            f"`Lookahead` outermost, as in `Lookahead(Chain(...), 5, 0.5)`, or give plain parameters: `Lookahead` then "
            f"keeps the slow ones in its state, and `eval_params(state, params)` returns them."
        )


def sees_examples(transform: "AbstractTransform") -> bool:
    """Whether it, or a transform inside of it, takes the updates of each example by itself."""
    return bool(axes_of_examples(transform))


def zeros_returned(transform: "AbstractTransform", updates: Updates) -> Updates:
    """Zeros like what the transform returns for these updates: without the axes of examples."""
    axes = axes_of_examples(transform)
    return jtu.tree_map(lambda u: jnp.zeros(np.delete(u.shape, axes) if axes else u.shape, u.dtype), updates)


def _init_entry(method: Any, name: str) -> Entry:
    def inside(function: Any, transform: "AbstractTransform", /, params: Params) -> State:
        if not transform.takes_complex:
            refuse_complex(transform, params)
        with jax.named_scope(f"{type(transform).__name__}.init"):
            return function(transform, params)

    def run(transform: "AbstractTransform", params: Params) -> State:
        if not transform.takes_pairs:
            refuse_pair(transform, params)
        return inside(method, transform, trainable(params))

    def call(program: Program, transform: "AbstractTransform", /, params: Params) -> State:
        return program(transform, params)

    run.__name__ = run.__qualname__ = f"{name}.init"
    return Entry(method, call, inside, Program(run, models=(0,)))


def _update_entry(method: Any, name: str) -> Entry:
    def inside(function, transform, /, updates, state, params=None, **extra):
        if not transform._is_checked_elsewhere:
            check_call(transform, updates, params, extra)
        with jax.named_scope(type(transform).__name__):
            return function(transform, updates, state, params, **extra)

    def run(transform, updates, state, params, extra):
        updates, params = trainable(updates), trainable(params)
        if params is not None:
            params = transform.paired(params, updates, f"{name}.update")
        return inside(method, transform, updates, state, params, **extra)

    def call(program, transform, /, updates, state, params=None, **extra):
        return program(transform, updates, state, params, extra)

    run.__name__ = run.__qualname__ = f"{name}.update"
    return Entry(method, call, inside, Program(run, models=(0, 2)))


def _eval_entry(method: Any, name: str) -> Entry:
    def inside(function: Any, transform: "AbstractTransform", /, state: State, params: Params) -> Params:
        with jax.named_scope(f"{type(transform).__name__}.eval_params"):
            return function(transform, state, params)

    def run(transform: "AbstractTransform", state: State, params: Params) -> list[Any]:
        return jtu.tree_leaves(eqx.combine(inside(method, transform, state, trainable(params)), params))

    def call(program: Program, transform: "AbstractTransform", /, state: State, params: Params) -> Params:
        params = single(params)
        return _with_arrays(params, program(transform, state, params))

    run.__name__ = run.__qualname__ = f"{name}.eval_params"
    return Entry(method, call, inside, Program(run, models=(1,)))


def _with_arrays(model: PyTree, arrays: Sequence[Any]) -> PyTree:
    """The model with other arrays; what is none in it stays."""
    leaves, treedef = jtu.tree_flatten(model)
    remaining = iter(arrays)
    return treedef.unflatten([next(remaining) if isinstance(x, ARRAY_TYPES) else x for x in leaves])


class AbstractTransform(AbstractHyperparameters):
    """A gradient transformation: a Module whose fields are its hyperparameters.

    Write `init(params)` and `update(updates, state, params=None, **extra)` as plain functions of trees in which every
    leaf is a floating or complex array, and return a state that is a Module of arrays. Called from outside, both run
    compiled: numbers are traced, so that a changed one never retraces; the rest of a model (functions, flags, integer
    arrays) passes them by. Called from a container they are part of the container's program.

    A rule on one array needs no tree code: see `AbstractLeafwise`.
    """

    needs_params: ClassVar[bool] = False
    """Whether `update` refuses `params=None`."""

    needs_extra: ClassVar[tuple[str, ...]] = ()
    """The extra arguments without which `update` cannot do its work, such as `value`, the loss."""

    takes_complex: ClassVar[bool] = True
    """Whether it is defined for complex parameters; if not, `init` refuses them by its name."""

    takes_examples: ClassVar[bool] = False
    """Whether `update` takes the updates of each example by itself, on a leading axis, and returns them without it.

    A container or a chain does if one of its parts does; an optimizer says so itself.
    """

    example_axes: ClassVar[tuple[int, ...]] = (0,)
    """The axes of the examples, if it takes them."""

    takes_pairs: ClassVar[bool] = False
    """Whether it takes `LookaheadParams` where others take parameters."""

    cites: ClassVar[tuple[str, ...]] = ()
    """Keys in the bibliography, for `modulax.citation`."""

    _is_checked_elsewhere: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Every class has entry points of its own, so that a profile names the class that ran.
        for name, wrap in (("init", _init_entry), ("update", _update_entry)):
            method = getattr(cls, name)
            method = method.function if isinstance(method, Entry) else method
            if not getattr(method, "__isabstractmethod__", False):
                setattr(cls, name, wrap(method, cls.__name__))
        if cls.eval_params is not AbstractTransform.eval_params:
            method: Any = cls.eval_params
            method = method.function if isinstance(method, Entry) else method
            setattr(cls, "eval_params", _eval_entry(method, cls.__name__))  # noqa: B010 (an entry is no method)

    @abc.abstractmethod
    def init(self, params: Params) -> State:
        """The state for these parameters, before the first step."""

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """One step: the transformed updates, each of the dtype it came with, and the new state."""

    def step(
        self, grads: Updates, state: State, params: Params, *, donate: bool = False, **extra: Any
    ) -> tuple[Params, State]:
        """One step of training as one program: update, and apply to the parameters.

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
        return _with_arrays(params, arrays), state

    def eval_params(self, state: State, params: Params) -> Params:
        """The parameters to evaluate and to ship: an average where the optimizer keeps one, else the same ones.

        A transform with a second set of parameters, such as Schedule-Free, holds it in its state and returns it here;
        containers ask what they contain. What was returned once is returned again.

        Args:
            state: the optimizer's state.
            params: the parameters that are trained, or the whole model.
        """
        del state
        return params

    def paired(self, params: Params, updates: Updates, owner: str) -> Params:
        """The parameters in the structure of the updates, refused unless both have the same paths and shapes."""
        refuse_pair(self, params)
        return paired(params, updates, owner, per_example=axes_of_examples(self))

    def at(self, state: State) -> "AbstractTransform":
        """This transform with every schedule replaced by its number for the step that comes next."""
        del state
        return self

    def hyperparameters(self, state: State | None = None) -> dict[str, Any]:
        """Every number by its dotted path; with a state, those in force at the next step, schedules resolved."""
        module = self if state is None else self.at(state)
        return AbstractHyperparameters.hyperparameters(module)


class AbstractStatelessTransform(AbstractTransform):
    """A transform without state: write `apply(updates, params, **extra)`, on trees."""

    @abc.abstractmethod
    def apply(self, updates: Updates, params: Params | None, **extra: Any) -> Updates:
        """The transformed updates."""

    def init(self, params: Params) -> EmptyState:
        """The empty state."""
        del params
        return EmptyState()

    def update(
        self, updates: Updates, state: EmptyState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, EmptyState]:
        """What `apply` returns, and the empty state."""
        return self.apply(updates, params, **extra), state


def _add(p: jax.Array, u: jax.Array) -> jax.Array:
    if p.dtype == u.dtype and jnp.finfo(p.dtype).bits >= 32:  # nothing to convert, and a third of the time to trace
        return jax.lax.add(p, u)
    dtype = at_least_float32(p.dtype, u.dtype)
    return jax.lax.add(p.astype(dtype), u.astype(dtype)).astype(p.dtype)


def apply_updates(params: PyTree, updates: Updates) -> PyTree:
    """The parameters plus the updates, each in the parameter's own dtype.

    Where an update is absent (None) the parameter is kept as it is, so that a whole model with activation functions,
    flags and integer arrays can be given.
    """
    leaves, treedef = jtu.tree_flatten(params)
    like = treedef.unflatten([x if eqx.is_inexact_array(x) else None for x in leaves])
    trained = [i for i, x in enumerate(leaves) if eqx.is_inexact_array(x)]
    pairs = [(i, u) for i, u in zip(trained, _updates_at(like, updates), strict=True) if u is not None]
    for i, u in pairs:
        if jnp.shape(u) != leaves[i].shape:
            path = leaf_paths(like)[trained.index(i)]
            raise ValueError(
                f"`apply_updates`: at `{path}` the update has shape {jnp.shape(u)} and the parameter "
                f"{leaves[i].shape}. They must be equal; nothing is broadcast."
            )
    for i, u in pairs:
        leaves[i] = _add(leaves[i], u)
    return treedef.unflatten(leaves)


def _updates_at(params: PyTree, updates: Updates) -> list[Any]:
    """The update of each leaf of the parameters, None where it has none; paired by path if the structures differ."""
    try:
        return jtu.tree_structure(params).flatten_up_to(updates)
    except ValueError:
        found = leaves_with_paths(updates, with_none=True)
    by_path: dict[str | None, Any] = dict(found)
    paths = leaf_paths(params)
    values = [by_path.get(longest_prefix(path, by_path), _MISSING) for path in paths]
    lacking = [path for path, value in zip(paths, values, strict=True) if value is _MISSING]
    unknown = [path for path, value in found if value is not None and path not in paths]
    if lacking or unknown:
        raise ValueError(
            f"{misfit('apply_updates', 'the parameters', lacking, unknown)} The parameters have {listing(paths)}. "
            "Where a parameter shall stay as it is, its update is None."
        )
    return values


@functools.cache
def _step_program(cls: type, donate: bool) -> Program:
    def run(transform, grads, state, params, extra):
        grads = trainable(grads)
        trained = transform.paired(trainable(params), grads, f"{cls.__name__}.step")
        updates, state = transform.update(grads, state, trained, **extra)
        return jtu.tree_leaves(apply_updates(params, updates)), state

    run.__name__ = run.__qualname__ = f"{cls.__name__}.step"
    return Program(run, models=(0, 2), donated=(1, 2) if donate else None)
