"""The values of a schedule at the first steps of all magnitudes: its range, and its peak."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._support.arithmetic import default_float
from .schedule import AbstractSchedule

_STEPS = 2 ** np.arange(0, 24, 1 / 64)  # close enough to find a peak within one percent


def values_over_steps(schedule: AbstractSchedule) -> np.ndarray | None:
    """Return the values of a schedule at the first steps of all magnitudes; None if it is a function of integers only.

    Args:
        schedule: the schedule.
    """
    try:
        return np.asarray(at_all_magnitudes(schedule))
    except Exception:  # a user's function may raise anything for an array
        return None


def at_all_magnitudes(schedule: AbstractSchedule) -> Array:
    """The values of a schedule at the first steps of all magnitudes, also in a program."""
    return _evaluated(schedule, jnp.asarray([0.0, *_STEPS], default_float()))


@jax.jit
def _evaluated(schedule: AbstractSchedule, steps: Array) -> Array:
    return jax.vmap(schedule)(steps)
