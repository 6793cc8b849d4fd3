"""The work around `init`, `update` and `eval_params`: filtering models, checking arguments, naming scopes.

The methods are those of `AbstractBoundary`: `inside` is the call within a program that is being traced, `run` the
function that is compiled, and `outside` the call of a user.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import NamedSharding

from .._support.arithmetic import is_inexact_array
from .._support.checks import listing
from .._support.module import AbstractState
from .._support.placement import followed, mesh_sharding, placed_at, placed_like
from .._support.types import Params, State, Updates
from ..tree._align import is_python_number, refuse_integers, refuse_numbers
from ..tree._math import trainable
from ..tree._paths import leaves_with_paths
from ..tree._state import owners
from .entry import AbstractBoundary
from .lookahead_params import single
from .program import Program
from .small_steps import lost_steps


@contextlib.contextmanager
def explaining_state(owner: str, method: Callable[..., Any], state: State) -> Iterator[None]:
    """Explain errors that come from None or a state of optax in place of the state of a class of ours."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        is_foreign = state is None or (isinstance(state, tuple) and method.__module__.startswith("modulax."))
        if isinstance(state, AbstractState) or not is_foreign:
            raise
        given = "None" if state is None else f"a `{type(state).__name__}`"
        raise ValueError(
            f"`{owner}` was given {given} as its state, which must come from its `init(params)`. To continue from a "
            f"state of optax, convert it with `modulax.checkpoint.state_from_optax(optimizer.init(params), state)`."
        ) from error


class InitBoundary(AbstractBoundary):
    """Filters the parameters out of the model; raises an error for parameters that the transform cannot train."""

    models: ClassVar[tuple[int, ...]] = (0,)

    def __init__(self, method: Callable[..., Any], owner: str):
        super().__init__(method, owner)
        self.placed = Program(self.run_placed, self.program.name, self.models)

    def inside(self, transform: Any, /, params: Params, *, allow_empty: bool = True) -> State:
        del allow_empty  # a part of a container may have nothing to train
        if not transform.takes_complex:
            _refuse_complex(transform, params)
        with jax.named_scope(f"{type(transform).__name__}.init"):
            return self.method(transform, params)

    def run(self, transform: Any, /, params: Params) -> State:
        if is_python_number(params):
            raise ValueError(f"`{self.owner}.init` was given a Python number; give an array, `jnp.asarray(...)`.")
        transform.check_params(params)
        return self.inside(transform, trainable(params))

    def run_placed(self, transform: Any, /, params: Params, where: "_Where") -> State:
        """Make the state with every array where its parameter is: nothing connects zeros with it otherwise."""
        state = self.run(transform, params)
        leaves, treedef = jtu.tree_flatten(state)
        shapes = [p.shape for p in jtu.tree_leaves(trainable(params))]
        wanted: list[NamedSharding | None] = [None] * len(leaves)
        for k, i in enumerate(owners(state, trainable(params))):
            is_here = jax.typeof(leaves[k]).memory_space == jax.memory.Space.Device  # and not in that of `Offload`
            if i is not None and is_here and (sharding := where.shardings[i]):
                wanted[k] = followed(sharding, shapes[i], leaves[k].shape)
        return treedef.unflatten(placed_at(leaves, wanted))

    def outside(self, transform: Any, /, params: Params, *, allow_empty: bool = False) -> State:
        leaves = jtu.tree_leaves(params)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
            return eqx.filter_eval_shape(lambda p: self.outside(transform, p, allow_empty=allow_empty), params)
        if any(map(mesh_sharding, leaves)):
            where = _Where(tuple(mesh_sharding(p) for p in leaves if is_inexact_array(p)))
            state = self.placed(transform, params, where)
        elif len(leaves) > _MANY and not any(map(_is_placed, leaves)):
            state = self.program.without_jit(transform, params)
        else:
            state = self.program(transform, params)
        is_empty = not any(map(is_inexact_array, leaves)) and not _is_placeholder(params, leaves)
        if is_empty and not allow_empty and jtu.tree_leaves(state):
            raise ValueError(_nothing_to_train(f"{type(transform).__name__}.init", params))
        _warn_of_lost_steps(transform, params, leaves)
        return state


@jtu.register_static
@dataclasses.dataclass(frozen=True)
class _Where:
    """The shardings of the parameters, as a tree without leaves: they are part of the program."""

    shardings: tuple[NamedSharding | None, ...]


# XLA takes quadratic time for a program with an output for every leaf: 0.1 s for 300 leaves of Adam, 6 s for 4000.
_MANY = 300


def _is_placed(x: Any) -> bool:
    """Whether only a program decides where the state for a leaf goes: it is traced, or on several devices."""
    return isinstance(x, Tracer) or (isinstance(x, jax.Array) and len(x.devices()) > 1)


class UpdateBoundary(AbstractBoundary):
    """Filters and pairs updates and parameters; raises an error for missing arguments and unsupported schedules."""

    models: ClassVar[tuple[int, ...]] = (0, 2)

    def inside(self, transform, /, updates, state, params=None, **extra):
        transform.check_call(updates, params, extra)
        with jax.named_scope(type(transform).__name__):
            return self.method(transform, updates, state, params, **extra)

    def run(self, transform, /, updates, state, params, extra):
        given, updates = updates, trainable(updates)
        if params is not None:
            refuse_integers(params, given, f"{self.owner}.update")
            refuse_numbers(params, updates, f"{self.owner}.update")
            params = transform.align_params(trainable(params), updates, f"{self.owner}.update")
        with explaining_state(f"{self.owner}.update", self.method, state):
            steps, new = self.inside(transform, updates, state, params, **extra)
        return placed_like(steps, updates), placed_like(new, state)

    def outside(self, transform, /, updates, state, params=None, **extra) -> tuple[Updates, State]:
        return self.program(transform, updates, state, params, extra)


class EvalBoundary(AbstractBoundary):
    """Puts the evaluation parameters back into the model that was given."""

    models: ClassVar[tuple[int, ...]] = (1,)
    result: ClassVar[int | None] = 1

    def inside(self, transform: Any, /, state: State, params: Params) -> Params:
        with jax.named_scope(f"{type(transform).__name__}.eval_params"):
            return self.method(transform, state, params)

    def run(self, transform: Any, /, state: State, params: Params) -> tuple[Params]:
        return (eqx.combine(self.inside(transform, state, trainable(params)), params),)

    def outside(self, transform: Any, /, state: State, params: Params) -> Params:
        return self.program(transform, state, single(params))[0]


def _warn_of_lost_steps(transform: Any, params: Params, leaves: Sequence[Any]) -> None:
    """Warn of a learning rate that is too small for the dtype of a parameter, unless the call is traced."""
    if any(is_inexact_array(x) and x.dtype.itemsize < 4 and not isinstance(x, Tracer) for x in leaves):
        for sentence in lost_steps(transform, trainable(params)):
            warnings.warn(f"`{type(transform).__name__}.init`: {sentence}", stacklevel=4)


def _is_placeholder(params: Params, leaves: Sequence[Any]) -> bool:
    """Whether it stands for parameters, as in `optax.tree_map_params`: a node of its own kind, without leaves."""
    is_mistake = params is None or isinstance(params, eqx.Module)  # an empty dict, list or tuple is meant
    return not leaves and not is_mistake


def _nothing_to_train(owner: str, params: Params) -> str:
    def kind(x: Any) -> str:
        return f"{x.dtype}[{','.join(map(str, x.shape))}]" if hasattr(x, "dtype") else type(x).__name__

    found = [f"{path or 'the tree itself'}: {kind(x)}" for path, x in leaves_with_paths(params)]
    what = f"It has {listing(found)}." if found else "It has no leaves."
    return (
        f"`{owner}` found nothing to train: no leaf of the parameters is a floating-point or complex array. {what} "
        f"Convert numbers and integers with `jnp.asarray(x, jnp.float32)`. If nothing is to be trained, write "
        f"`init(params, allow_empty=True)`."
    )


def _refuse_complex(transform: Any, params: Params) -> None:
    found = [path for path, p in leaves_with_paths(params) if jnp.issubdtype(p.dtype, jnp.complexfloating)]
    if found:
        raise ValueError(
            f"`{type(transform).__name__}` is not defined for complex parameters, and {listing(found)} is complex. "
            f"Train the real and the imaginary part as two parameters, as `SplitRealAndImaginary(...)` does, or choose "
            f"an optimizer that supports complex parameters."
        )
