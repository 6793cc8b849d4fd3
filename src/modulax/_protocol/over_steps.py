"""The values of a schedule at the first steps of all magnitudes: its range, and its peak."""

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
