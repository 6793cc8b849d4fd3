"""Aggregators: transforms of per-example gradients."""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._plugin.arguments import check_integer
from .._plugin.arrays import State
from .._plugin.trees import leaves_with_paths
from ..authoring import AbstractTransform, Params, Updates
from ..numerics import at_least_float32


class AbstractAggregator(AbstractTransform):
    """Base class of aggregators: transforms that reduce per-example updates to one update.

    A subclass implements `aggregate`, which returns the update, a mapping of auxiliary outputs, and the new state. In a
    `Process` the auxiliary outputs become extra arguments of the postprocessor.
    """

    _keeps = "gradients"

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,)

    @abc.abstractmethod
    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """Reduce per-example updates.

        Returns:
            The update, a mapping from names to auxiliary outputs (arrays or trees), and the new state.
        """

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Reduce per-example updates, without the auxiliary outputs."""
        aggregated, _, state = self.aggregate(updates, state, params, **extra)
        return aggregated, state


class AbstractOverAxes(AbstractAggregator):
    """An aggregator whose examples are on axes of its own choice."""

    per_elt_axis: eqx.AbstractVar[Any]

    @property
    def example_axes(self) -> tuple[int, ...]:
        return () if self.per_elt_axis is None else as_axes(self.per_elt_axis)


@runtime_checkable
class AggregatorUpdateFn(Protocol):
    """The signature of the update function of an `Aggregator`."""

    def __call__(self, per_elt_updates: Updates, state: State, params: Params | None = None, /, **extra: Any) -> Any:
        """Return the update, or a pair of the update and auxiliary outputs; and the new state."""
        ...


class Aggregator(AbstractAggregator):
    """Make an aggregator from an init and an update function.

        def median(per_elt_updates, state, params=None, **extra):
            return jax.tree.map(lambda g: jnp.median(g, axis=0), per_elt_updates), state

        Aggregator(lambda params: EmptyState(), median)

    Both functions are called with trees in which every leaf is a floating-point or complex array.

    Args:
        init: function from the parameters to a state.
        update: function from the per-example updates (with the examples on the first axis), the state and the
            parameters to the update and the new state; it receives all extra arguments. With `has_aux`, it returns a
            pair of the update and a mapping of auxiliary outputs in place of the update.
        has_aux: whether `update` also returns a mapping of auxiliary outputs.
    """

    init_fn: Callable[[Params], State] = eqx.field(static=True)
    update_fn: AggregatorUpdateFn = eqx.field(static=True)
    has_aux: bool = eqx.field(static=True)

    def __init__(self, init: Callable[[Params], State], update: AggregatorUpdateFn, has_aux: bool = False):
        self.init_fn, self.update_fn, self.has_aux = init, update, has_aux

    def init(self, params: Params) -> State:
        """Call the init function."""
        return self.init_fn(params)

    def aggregate(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, dict[str, Any], State]:
        """Call the update function."""
        out, state = self.update_fn(updates, state, params, **extra)
        aggregated, aux = out if self.has_aux else (out, {})
        return aggregated, aux, state


def as_axes(axes: int | Sequence[int]) -> tuple[int, ...]:
    """Convert one axis or several to a tuple."""
    return (axes,) if isinstance(axes, (int, np.integer)) else tuple(axes)


def check_steps(owner: object, steps: Any) -> None:
    """Check that the number of accumulation steps is a positive integer.

    Raises:
        ValueError: if it isn't.
    """
    check_integer(type(owner).__name__, "accumulation_steps", steps, hint=" `MultiSteps` takes a schedule.")


def wide(g: Array) -> Array:
    """Cast an array to at least float32."""
    return g.astype(at_least_float32(g.dtype))


def means(updates: Updates, axes: tuple[int, ...]) -> PyTree:
    """Average over the examples in at least float32, after checking that all arrays have equally many."""
    get_batch_size_from_per_elt_updates(updates, axes)
    return jtu.tree_map(lambda g: jnp.mean(wide(g), axis=axes), updates)


def get_batch_size_from_per_elt_updates(per_elt_updates: PyTree, per_elt_axis: int | Sequence[int]) -> int:
    """Return the number of examples in per-example updates.

    Args:
        per_elt_updates: the per-example updates.
        per_elt_axis: example axis, or several.

    Raises:
        ValueError: if an array lacks the axis, or the numbers of examples differ.
    """
    axes, sizes = as_axes(per_elt_axis), {}
    for path, u in leaves_with_paths(per_elt_updates):
        if any(not -u.ndim <= axis < u.ndim for axis in axes):
            raise ValueError(
                f"Per-example gradients are needed, with the examples on axis {per_elt_axis}, got shape "
                f"{u.shape}{f' at `{path}`' if path else ''}. `modulax.microbatching.micro_grad` computes such "
                f"gradients."
            )
        sizes[path] = math.prod(u.shape[axis] for axis in axes)
    if len(dict.fromkeys(sizes.values())) > 1:
        found = ", ".join(f"{size} at `{path}`" for path, size in sizes.items())
        raise ValueError(f"Per-example gradients must have the same number of examples in all arrays, got {found}.")
    return next(iter(sizes.values()), 0)
