"""Containers: transforms that hold others.

A container declares its parts, `inner: AbstractTransform = required_part()`, and implements `init` and `update`, which
call those of the parts and pass `extra` on. `each_part`, `at`, `eval_params` and the check of every part follow from
the declarations; `describe`, the registry, citations and per-example gradients use `each_part`. A container that gives
a part only some of the leaves says which by `receives=`. One that counts the steps of its parts declares
`clock = "steps"` and has a field `count` in its state; one that counts in another way overrides `resolved`.

`extra_for` and `extra_inside`, at the end, convert the extra arguments of `update` for a part that receives only some
of the leaves, or the parameters in another form.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._support.arithmetic import is_inexact_array
from .._support.checks import brief
from .._support.module import AbstractState, with_fields
from .._support.placement import typed_like
from .._support.types import P, Params, State, Updates
from .._support.wrong_calls import is_model
from ..tree._align import align, paired
from ..tree._math import trainable
from ..tree._paths import is_plain
from .hyperparameters import AbstractHyperparameters
from .masks import merge, select
from .schedule_values import resolve
from .transform import AbstractTransform, EmptyState, Part

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
        return eval_parts(self.at(state), state, params)

    def _check_parts(self) -> None:
        cls = type(self)
        if not part_fields(self) and cls.each_part is AbstractContainer.each_part:
            raise ValueError(
                f"`{cls.__name__}` is a container without parts. Declare one, `inner: ... = required_part()`."
            )
        check_parts(self)


def part_fields(module: AbstractTransform) -> list[dataclasses.Field]:
    """The fields that are declared with `required_part()` or `part()`."""
    return [field for field in dataclasses.fields(module) if "part" in field.metadata]


def check_parts(module: AbstractTransform) -> None:
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


def eval_parts(transform: AbstractTransform, state: State, params: Params) -> Params:
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


# Extra arguments that are always trees like the parameters, even if their leaves have other shapes.
TREES = ("grad", "previous_grad")

# Extra arguments that are functions of the parameters.
FUNCTIONS = ("value_fn", "obj_fn", "grad_fn")


def extra_inside(
    extra: Mapping[str, Any],
    updates: Updates,
    down: Callable[[PyTree], PyTree],
    up: Callable[[PyTree], PyTree],
) -> dict[str, Any]:
    """Convert the extra arguments for an inner transform that receives the parameters in another form.

    Trees with the structure and shapes of the updates are converted under any name, and functions of the parameters,
    such as `value_fn`, are called with the parameters in the outer form.

    Args:
        extra: the extra arguments of the container.
        updates: the updates of the container.
        down: maps a tree like the parameters to the inner form.
        up: maps parameters in the inner form back, for the functions of the caller.
    """

    def of_inner(function: Callable[..., Any], is_gradient: bool) -> Callable[..., Any]:
        # `wraps` keeps the signature, from which line searches read the names of further arguments.
        @functools.wraps(function, updated=())
        def call(params: Params, *args: Any, **kwargs: Any) -> Any:
            out = function(up(params), *args, **kwargs)
            return down(out) if is_gradient else out

        return call

    inner = dict(extra)
    for name, value in extra.items():
        if value is not None and (name in TREES or _is_like(value, updates)):
            inner[name] = down(value)
    for name in FUNCTIONS:
        if inner.get(name) is not None:
            inner[name] = of_inner(inner[name], name == "grad_fn")
    return inner


def _is_like(tree: PyTree, updates: Updates) -> bool:
    """Whether it is a tree of inexact arrays with the structure and shapes of the updates; never for a single array."""
    leaves, treedef = jtu.tree_flatten(updates)
    return (
        # If the parameters are one array, any extra array of its shape would match, such as the loss beside a scalar.
        not jtu.treedef_is_leaf(treedef)
        and jtu.tree_structure(tree) == treedef
        and all(is_inexact_array(x) and x.shape == u.shape for x, u in zip(jtu.tree_leaves(tree), leaves, strict=True))
    )


def extra_for(
    extra: Mapping[str, Any], chosen: Sequence[bool], updates: Updates, params: Params | None, owner: str
) -> dict[str, Any]:
    """Convert the extra arguments for a part that receives the chosen leaves only.

    Functions of the parameters are called with all of them, the other leaves at their current values.
    """

    def down(tree: PyTree) -> PyTree:
        # Paired by path, because an extra tree may be a whole model, or have other containers.
        return select(paired(trainable(tree), updates, owner), chosen)

    def up(part: PyTree) -> PyTree:
        return part if params is None else merge(params, part, chosen)

    return extra_inside(extra, updates, down, up)
