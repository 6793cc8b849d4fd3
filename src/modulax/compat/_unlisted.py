"""Names that optax's private modules have and its public ones do not, which programs import by those modules."""

import operator
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

from .. import losses
from ._counterparts import PRINTING, as_function, counterpart


@runtime_checkable
class Initable(Protocol):
    """What has a function `init` of the parameters."""

    def init(self, params: Any) -> Any:
        """Return the initial state."""


def canonicalize_axis(axis: Any, ndim: int) -> int:
    """Return an axis, counted from the first one.

    Args:
        axis: an axis, negative if it is counted from the last one.
        ndim: the number of axes.
    """
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"The axis {axis} is out of bounds for an array of dimension {ndim}.")
    return axis % ndim


def canonicalize_axes(axes: Sequence[Any], ndim: int) -> tuple[int, ...]:
    """Return axes, counted from the first one.

    Args:
        axes: the axes, negative if they are counted from the last one.
        ndim: the number of axes.
    """
    return tuple(canonicalize_axis(axis, ndim) for axis in axes)


def lerp(t: Any, a: Any, b: Any) -> Any:
    """Return `a + t (b - a)` for two trees.

    Args:
        t: a number.
        a: a tree.
        b: a tree like it.
    """
    return jax.tree.map(lambda x, y: x + t * (y - x), a, b)


def weighted_logsoftmax(x: Any, weights: Any) -> jax.Array:
    """Return the logarithm of the softmax times weights, with zero where the weight is zero.

    Args:
        x: the logits.
        weights: the weights.
    """
    is_used = jnp.asarray(weights) != 0
    return jnp.where(is_used, weights * jnp.where(is_used, jax.nn.log_softmax(x), 0), 0)


def _as_function(name: str, **changed: Any) -> Any:
    return as_function(counterpart("contrib", name), "contrib", name, **changed)


UNLISTED: dict[str, Any] = {
    "IndividualOutputs": namedtuple("Aux", ["values", "metrics", "aux"]),
    "Initable": Initable,
    "LossFn": Callable[..., Any],
    "MaxFun": Callable[..., Any],
    "T": TypeVar("T"),
    "binary_logistic_loss": losses.sigmoid_binary_cross_entropy,
    "binary_sparsemax_loss": losses.sparsemax_loss,
    "canonicalize_axes": canonicalize_axes,
    "canonicalize_axis": canonicalize_axis,
    "lerp": lerp,
    "multiclass_logistic_loss": losses.softmax_cross_entropy_with_integer_labels,
    "weighted_logsoftmax": weighted_logsoftmax,
    "scale_by_sophia": _as_function("scale_by_sophia", ignored=PRINTING),
} | {
    name: _as_function(name, without=("clamped", "per_head"))
    for name in ("scale_by_dog", "scale_by_dowg", "scale_by_shape")
}
