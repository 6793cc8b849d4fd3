"""What an aggregator is: a transform that takes the updates of each example by itself."""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.transform import AbstractTransform
from .._support.arithmetic import at_least_float32
from .._support.checks import check_integer
from .._support.types import Params, State, Updates
from ..tree._paths import leaves_with_paths


class AbstractAggregator(AbstractTransform):
    """A transform that takes the updates of each example by itself, and returns one update.

    Write `aggregate`, which returns the update, what else it has found out, and the new state. What else there is, a
    mapping from names to arrays or trees, becomes extra arguments of what comes behind it in `Process`.
    """

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,)

    @abc.abstractmethod
    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """The update, what else it has found out, and the new state."""

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """One step: the update, without what else there is."""
        aggregated, _, state = self.aggregate(updates, state, params, **extra)
        return aggregated, state


@runtime_checkable
class AggregatorUpdateFn(Protocol):
    """The update of an `Aggregator`: from the updates of each example to one update."""

    def __call__(self, per_elt_updates: Updates, state: State, params: Params | None = None, /, **extra: Any) -> Any:
        """The update, or a pair of it and what else there is, and the new state."""
        ...


class Aggregator(AbstractAggregator):
    """Two functions as an aggregator.

        def median(per_elt_updates, state, params=None, **extra):
            return jax.tree.map(lambda g: jnp.median(g, axis=0), per_elt_updates), state

        Aggregator(lambda params: EmptyState(), median)

    Both see trees in which every leaf is a floating or complex array.

    Args:
        init: maps the parameters to a state.
        update: maps the updates of the examples (which stand on the first axis), the state and the parameters to the
            update and the new state; it is given all extra arguments. Instead of the update it may return a pair of
            it and a mapping, if `has_aux` says so.
        has_aux: whether it does.
    """

    init_fn: Callable[[Params], State] = eqx.field(static=True)
    update_fn: AggregatorUpdateFn = eqx.field(static=True)
    has_aux: bool = eqx.field(static=True)

    def __init__(self, init: Callable[[Params], State], update: AggregatorUpdateFn, has_aux: bool = False):
        self.init_fn, self.update_fn, self.has_aux = init, update, has_aux

    def init(self, params: Params) -> State:
        """What the function returns."""
        return self.init_fn(params)

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """What the function returns."""
        out, state = self.update_fn(updates, state, params, **extra)
        aggregated, aux = out if self.has_aux else (out, {})
        return aggregated, aux, state


def as_axes(axes: int | Sequence[int]) -> tuple[int, ...]:
    """One axis or several, as a tuple."""
    return (axes,) if isinstance(axes, (int, np.integer)) else tuple(axes)


def check_steps(owner: object, steps: Any) -> None:
    """Refuses a number of accumulation steps that is no positive integer."""
    check_integer(type(owner).__name__, "accumulation_steps", steps, hint=" `MultiSteps` takes a schedule.")


def wide(g: Array) -> Array:
    """The array in at least float32."""
    return g.astype(at_least_float32(g.dtype))


def means(updates: Updates, axes: tuple[int, ...]) -> PyTree:
    """The means over the examples, in at least float32."""
    get_batch_size_from_per_elt_updates(updates, axes)
    return jtu.tree_map(lambda g: jnp.mean(wide(g), axis=axes), updates)


def get_batch_size_from_per_elt_updates(per_elt_updates: PyTree, per_elt_axis: int | Sequence[int]) -> int:
    """The number of examples in the updates of each, refused unless every array has as many.

    Args:
        per_elt_updates: the updates of each example.
        per_elt_axis: the axis of the examples, or the axes.
    """
    axes, sizes = as_axes(per_elt_axis), {}
    for path, u in leaves_with_paths(per_elt_updates):
        if any(not -u.ndim <= axis < u.ndim for axis in axes):
            raise ValueError(
                f"The updates of each example by itself are needed, with the examples on axis {per_elt_axis}; there is "
                f"the shape {u.shape}{f' at `{path}`' if path else ''}. `modulax.microbatching.micro_grad` returns "
                f"such gradients."
            )
        sizes[path] = math.prod(u.shape[axis] for axis in axes)
    if len(dict.fromkeys(sizes.values())) > 1:
        found = ", ".join(f"{size} at `{path}`" for path, size in sizes.items())
        raise ValueError(f"The updates of each example must be of equally many examples; there are {found}.")
    return next(iter(sizes.values()), 0)
