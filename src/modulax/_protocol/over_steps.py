"""The values of a number or of a schedule over a run: its range, and its peak."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._support.arithmetic import default_float
from .schedule import AbstractSchedule

_STEPS = 2 ** np.arange(0, 24, 1 / 64)  # close enough to find a peak within one percent
_MOST_PAIRED = 32


def values_over_steps(schedule: AbstractSchedule) -> np.ndarray | None:
    """Return the values of a schedule at steps of all magnitudes, in order; None if it is a function of integers only.

    Args:
        schedule: the schedule.
    """
    try:
        steps, values = map(np.asarray, _sampled(schedule))
    except Exception:  # a user's function may raise anything for an array
        return None
    # Sorted here, because in the program the number of steps is that of all schedules of a class.
    return values[np.unique(steps, return_index=True)[1]]


def known_values(rate: Any) -> np.ndarray | None:
    """The values of a number or of a schedule over the run; None if they are not known on the host."""
    if isinstance(rate, AbstractSchedule):
        return values_over_steps(rate)
    # An array on a device is not read, because `init` would wait for it.
    is_known = isinstance(rate, (float, int, np.generic, np.ndarray)) and np.ndim(rate) == 0
    return np.asarray(rate, np.float64) if is_known else None


def largest(rate: Any) -> float | None:
    """Return the largest magnitude of a learning rate over the run; None if it is not known on the host.

    Args:
        rate: a number or a schedule.
    """
    values = known_values(rate)
    if values is None:
        return None
    peak = float(np.max(np.abs(values)))
    return float(f"{peak:.3g}") if values.ndim else peak  # that of a schedule is sampled, so not exact


def at_all_magnitudes(schedule: AbstractSchedule) -> Array:
    """The values of a schedule at steps of all magnitudes, also in a program."""
    return _sampled(schedule)[1]


@jax.jit
def _sampled(schedule: AbstractSchedule) -> tuple[Array, Array]:
    """Steps, in no order, and the values at them."""
    steps = _steps(schedule)
    return steps, jax.vmap(schedule)(steps)


def _steps(schedule: AbstractSchedule) -> Array:
    """Steps of all magnitudes, and those beside the steps at which a schedule may jump.

    These are numbers of the schedule, and for schedules in a `Join` sums of two.
    """
    found = [jnp.ravel(x).astype(default_float()) for x in jtu.tree_leaves(schedule) if jnp.isrealobj(x)]
    numbers = jnp.concatenate(found) if found else jnp.zeros(0, default_float())
    if numbers.size <= _MOST_PAIRED:
        numbers = jnp.concatenate([numbers, jnp.ravel(numbers[:, None] + numbers[None, :])])
    elif numbers.size > len(_STEPS):  # a table of values
        numbers = numbers[:0]
    beside = jnp.concatenate([jnp.floor(numbers) + k for k in (-1, 0, 1)])
    # A number that is NaN is at no step.
    return jnp.concatenate([jnp.asarray([0.0, *_STEPS], default_float()), jnp.nan_to_num(beside).clip(0, _STEPS[-1])])
