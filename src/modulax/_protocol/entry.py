"""Entry points: `init`, `update`, `eval_params` and `step` as compiled functions of the transform itself.

A method that a user calls runs a compiled program. One that is called while a program is being traced, for instance by
a container, is the plain function, so that a chain of optimizers is one program and not a nest of them.

A boundary does the work around either call: it filters the model, checks the arguments, and names scopes. `taken` and
`given` are the work around a call within a program that is being traced, `run` is the function that is compiled, and
`outside` the call of a user.
"""

import abc
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import NamedSharding

from .._support.arithmetic import is_inexact_array
from .._support.checks import listing
from .._support.failures import array_type, located, shortened
from .._support.flax_nodes import holds_states, without_variables
from .._support.module import AbstractState
from .._support.placement import made_for, mesh_sharding, placed_like, sharding_along
from .._support.slots import likely_mistakes
from .._support.tracing import is_tracing
from .._support.types import Params, State, Updates
from .._support.wrong_calls import wrong_function_call
from ..tree._align import is_python_number, trained
from ..tree._math import shapes_without, strong, trainable
from ..tree._paths import leaves_with_paths
from ..tree._state import declarations, is_per_matrix, owners
from .extra_arguments import refuse_hyperparameters
from .hyperparameters import AbstractHyperparameters
from .masks import AbstractLabels, mask_of
from .program import Program

F = TypeVar("F", bound=Callable[..., Any])


class _AbstractBoundary(abc.ABC):
    """The work between the caller of a method and the method itself, such as filtering and checking arguments.

    Args:
        method: the method as its class wrote it.
        owner: name of the class, shown in profiles.
    """

    models: ClassVar[tuple[int, ...]]
    """Indices of the program's arguments that may be whole models."""

    result: ClassVar[int | None] = None
    """Index of the argument that the first result is like, if it is a model."""

    inside: Callable[..., Any]
    """The entry point, set by `entry`: within `run`, it calls the plain method."""

    def __init__(self, method: Callable[..., Any], owner: str):
        self.method, self.owner = method, owner
        self.program = Program(self.run, f"{owner}.{method.__name__}", self.models, result=self.result)

    def taken(self, transform: Any, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments of a call within a program that is being traced, and return those of the method."""
        del transform
        return args, kwargs

    def given(self, result: Any) -> Any:
        """Return the result of such a call from that of the method."""
        return result

    @abc.abstractmethod
    def run(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Filter the arguments, then call `inside`, the entry point itself: the function that is compiled."""

    @abc.abstractmethod
    def outside(self, transform: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program: the call of a user."""


def entry(boundary: _AbstractBoundary) -> Callable[..., Any]:
    """Make a method of a boundary: compiled when a user calls it, and plain while another one is being traced.

    The method binds like any function. A bound method hashes and compares by the identity of its owner, so that
    `jax.jit(optimizer.update)` works although the leaves of an optimizer are not hashable.
    """
    owner, name = boundary.owner, boundary.method.__name__
    place = "{}" if name == "update" else f"{{}}.{name}"  # in profiles

    # The call of a part of an optimizer is one frame above its method.
    @functools.wraps(boundary.method)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_inside = is_tracing()
        try:
            if not is_inside:
                return boundary.outside(self, *args, **kwargs)
            taken, named = boundary.taken(self, *args, **kwargs)
            cls = type(self).__name__
            with jax.named_scope(place.format(cls)), located(cls, name):
                result = boundary.method(self, *taken, **named)
            return boundary.given(result)
        except Exception as error:
            _explain(error, method, owner, self, args, kwargs)
            if not is_inside:
                shortened(error)
            raise

    boundary.inside = method
    vars(method)["boundary"] = boundary  # read by `as_written`, for a subclass that inherits the method
    return method


def explained(function: F) -> F:
    """Make a method of a transform that runs on the host say what to write where its arguments are wrong.

    Args:
        function: the method.
    """

    @functools.wraps(function)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except Exception as error:
            owner = type(self).__name__ if isinstance(self, AbstractHyperparameters) else "Optimizer"
            _explain(error, method, owner, self, args, kwargs)
            given = inspect.signature(function).bind(self, *args, **kwargs).arguments
            is_foreign = isinstance(error, (AttributeError, TypeError)) and "state" in given
            update: Any = getattr(type(self), "update", None)  # which a schedule may not have
            if is_foreign and (message := wrong_state(owner, as_written(update), given["state"], error=error)):
                raise ValueError(message) from error
            if not is_tracing():
                shortened(error)
            raise

    return cast(F, method)


def _explain(
    error: Exception, method: Callable[..., Any], owner: str, self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise an error that says what to write, if a method was called on the class, or if an argument is missing."""
    # Asked here because a step has no time for it.
    if not isinstance(self, AbstractHyperparameters):
        name = method.__name__
        raise TypeError(f"`{owner}.{name}` was called on the class: write `{owner}(...).{name}(...)`.") from None
    if isinstance(error, TypeError) and (message := wrong_function_call(method, (self, *args), kwargs)):
        raise TypeError(message) from error


def as_written(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that an entry point was made from; any other method is returned unchanged."""
    boundary = getattr(method, "boundary", None)
    return method if boundary is None else boundary.method


def _strong(state: State) -> State:
    """A state without weak types, which `jnp.asarray(0.5)` has, and the same state from a checkpoint has not."""
    return jtu.tree_map(strong, state)


def _with_modules(transform: Any, state: State, params: Params, example_axes: tuple[int, ...] = ()) -> State:
    """The state with the Modules in it, such as quantized arrays: the stock `flax.nnx.Optimizer` keeps their arrays."""
    if not holds_states(state):
        return state
    shapes = shapes_without(example_axes, trainable(params))
    return jtu.tree_structure(jax.eval_shape(transform.init, shapes)).unflatten(jtu.tree_leaves(state))


class InitBoundary(_AbstractBoundary):
    """Filters the parameters out of the model; raises an error for parameters that the transform cannot train."""

    models: ClassVar[tuple[int, ...]] = (0,)

    def taken(self, transform, /, params, *, allow_empty=True):
        del allow_empty  # a part of a container may have nothing to train
        if "real" in transform.needs:
            _refuse_complex(transform, params)
        for name, mask in vars(transform).items():  # by the name of the user's argument, before a part gets them
            if name.endswith("mask") and isinstance(mask, AbstractLabels) and type(mask).bound is AbstractLabels.bound:
                mask_of(transform, mask, params, name)
        return (params,), {}

    def given(self, result):
        return _strong(result)

    def run(self, transform: Any, /, params: Params, where: "_Where | None" = None) -> State:
        _refuse_others(f"{self.owner}.init", params)
        params = trainable(params)
        state = made_for(params, lambda: self.inside(transform, params))
        return state if where is None else where.place(state, params)

    def outside(self, transform: Any, /, params: Params, *, allow_empty: bool = False) -> State:
        leaves = jtu.tree_leaves(params)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
            # `jax.jit` refuses a `ShapeDtypeStruct` as an argument.
            return eqx.filter_eval_shape(lambda p: self.outside(transform, p, allow_empty=allow_empty), params)
        if any(map(mesh_sharding, leaves)):
            where = _Where(tuple(mesh_sharding(p) for p in leaves if is_inexact_array(p)))
            state = self.program(transform, params, where)
        elif len(leaves) > _MANY and not any(map(_is_placed, leaves)):
            state = self.program.without_jit(transform, params)
        else:
            state = self.program(transform, params)
        # A transform without a state may be given parameters with nothing to train, such as None.
        if not allow_empty and jtu.tree_leaves(state):
            _refuse_empty(f"{type(transform).__name__}.init", params)
        likely_mistakes.module.warn_of(transform, params)
        return state


@jtu.register_static
@dataclasses.dataclass(frozen=True)
class _Where:
    """The shardings of the parameters, as a tree without leaves: they are part of the program."""

    shardings: tuple[NamedSharding | None, ...]

    def place(self, state: State, params: Params) -> State:
        """Put every array of the state where its parameter is: nothing connects zeros with it otherwise."""
        leaves, treedef = jtu.tree_flatten(state)
        shapes = [p.shape for p in jtu.tree_leaves(params)]
        for k, (i, declared) in enumerate(zip(owners(state, params), declarations(state), strict=True)):
            is_here = jax.typeof(leaves[k]).memory_space == jax.memory.Space.Device  # and not in that of `Offload`
            if i is not None and is_here and (sharding := self.shardings[i]):
                along = sharding_along(sharding, shapes[i], leaves[k].shape, is_per_matrix(declared))
                # No group with `shard_like` for each: XLA makes equal zeros once, and would put all in one place.
                leaves[k] = leaves[k] if along is None else jax.lax.with_sharding_constraint(leaves[k], along)
        return treedef.unflatten(leaves)


# XLA takes quadratic time for a program with an output for every leaf: 0.1 s for 300 leaves of Adam, 6 s for 4000.
_MANY = 300


def _is_placed(x: Any) -> bool:
    """Whether only a program decides where the state for a leaf goes: it is traced, or on several devices."""
    return isinstance(x, Tracer) or (isinstance(x, jax.Array) and len(x.devices()) > 1)


class AbstractUpdateBoundary(_AbstractBoundary):
    """Filters and pairs updates and parameters; raises an error for missing arguments and unsupported schedules."""

    models: ClassVar[tuple[int, ...]] = (0, 2)

    def taken(self, transform, /, updates, state, params=None, **extra):
        transform._check_call(updates, params, extra)
        return (updates, state, params), extra

    def given(self, result):
        steps, new = result
        return steps, _strong(new)

    def called(self, transform, /, updates, state, params, extra):
        """Filter and pair the trees, call the method, and place its results: what every `run` does."""
        if params is None:
            updates = trainable(updates)
        else:
            axes = transform.example_axes
            params, updates = trained(params, updates, f"{self.owner}.update", per_example=axes)
        steps, new = self.inside(transform, updates, state, params, **extra)
        # XLA may choose any sharding for a result. With another one, the next step would be compiled again.
        return placed_like(steps, updates), placed_like(new, state)

    def outside(self, transform, /, updates, state, params=None, **extra) -> tuple[Updates, State]:
        return self.program(transform, updates, state, params, extra)


class _UpdateBoundary(AbstractUpdateBoundary):
    """The work around `update` of a class here, whose states are Modules."""

    def run(self, transform, /, updates, state, params, extra):
        refuse_hyperparameters(f"{self.owner}.update", transform, extra)
        state = _with_modules(transform, state, updates, transform.example_axes)
        with explaining_state(f"{self.owner}.update", self.method, state):
            return self.called(transform, updates, state, params, extra)


class _EvalBoundary(_AbstractBoundary):
    """Puts the evaluation parameters back into the model that was given."""

    models: ClassVar[tuple[int, ...]] = (1,)
    result: ClassVar[int | None] = 1

    def taken(self, transform, /, state, params):
        del transform
        return (without_variables(state), params), {}

    def run(self, transform: Any, /, state: State, params: Params) -> tuple[Params]:
        if message := wrong_state(f"{self.owner}.eval_params", self.method, state, params):
            raise ValueError(message)
        given = trainable(params)
        found = self.inside(transform, _with_modules(transform, state, params), given)
        # They are computed from the state, which may be divided where the parameters are whole.
        return (eqx.combine(placed_like(found, given), params),)

    def outside(self, transform: Any, /, state: State, params: Params) -> Params:
        return self.program(transform, state, params)[0]


BOUNDARIES = {"init": InitBoundary, "update": _UpdateBoundary, "eval_params": _EvalBoundary}
"""The boundary of each method of a transform that is an entry point."""


def _refuse_complex(transform: Any, params: Params) -> None:
    """Raise an error for complex parameters of a transform that is defined for real ones only."""
    found = [path for path, p in leaves_with_paths(params) if jnp.issubdtype(p.dtype, jnp.complexfloating)]
    if found:
        raise ValueError(
            f"`{type(transform).__name__}` is not defined for complex parameters, and {listing(found)} is complex. "
            f"Train the real and the imaginary part as two parameters, as `SplitRealAndImaginary(...)` does, or choose "
            f"an optimizer that supports complex parameters."
        )


def _refuse_others(owner: str, params: Params) -> None:
    """Raise an error for a Python number, and for a class of parameters that only some transforms accept."""
    if is_python_number(params):
        raise ValueError(f"`{owner}` was given a Python number; give an array, `jnp.asarray(...)`.")
    if hint := getattr(type(params), "_params_hint", ""):
        raise ValueError(f"`{owner}` was given `{type(params).__name__}`. {hint}")


def _refuse_empty(owner: str, params: Params) -> None:
    """Raise an error for parameters with nothing to train, and none for what stands for parameters.

    That is a node of its own kind without leaves, as in `optax.tree_map_params`.
    """
    leaves = jtu.tree_leaves(params)
    is_placeholder = not leaves and not isinstance(params, (eqx.Module, Mapping, list, tuple, type(None)))
    if is_placeholder or any(map(is_inexact_array, leaves)):
        return
    found = [f"{path or 'the tree itself'}: {array_type(x)}" for path, x in leaves_with_paths(params)]
    convert = f"It has {listing(found)}. Convert numbers and integers with `jnp.asarray(x, jnp.float32)`."
    if leaves and all(map(callable, leaves)):
        convert = "Give the arrays, and not the function that takes them."
    raise ValueError(
        f"`{owner}` found nothing to train: no leaf of the parameters is a floating-point or complex array. "
        f"{convert if found else 'It has no leaves.'} If nothing is to be trained, write `init(params, "
        f"allow_empty=True)`."
    )


@contextlib.contextmanager
def explaining_state(owner: str, method: Callable[..., Any], state: State) -> Iterator[None]:
    """Explain errors that come from anything else in place of the state of a class of ours."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if message := wrong_state(owner, method, state, error=error):
            raise ValueError(message) from error
        raise


def wrong_state(
    owner: str, method: Callable[..., Any], state: State, params: Params = None, error: Exception | None = None
) -> str | None:
    """The error message for what cannot be a state; None if it is one, or if the transform of a user may have it.

    Args:
        owner: the method that was called.
        method: a method of the transform as its class wrote it.
        state: what was given as the state.
        params: what was given as the parameters.
        error: the error that was raised for it.
    """
    if isinstance(state, AbstractState) and type(getattr(error, "module", None)) is type(state):
        return f"`{owner}` was given the state of another optimizer, a `{type(state).__name__}`. Call its own `init`."
    if isinstance(state, AbstractState) or not (state is None or method.__module__.startswith("modulax.")):
        return None
    if isinstance(params, AbstractState):
        name = owner.rpartition(".")[2]
        return f"`{owner}` was given the parameters and the state in the other order: write `{name}(state, params)`."
    given = "None" if state is None else f"a `{type(state).__name__}`"
    message = f"`{owner}` was given {given} as its state, which must come from its `init(params)`."
    if not isinstance(state, (tuple, type(None))):
        return message
    return (
        f"{message} To continue from a state of optax, write "
        f"`state, _ = modulax.checkpoint.state_from_optax(optimizer.init(params), state, optimizer, params)`."
    )
