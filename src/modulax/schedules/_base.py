"""Building blocks of schedules: arithmetic that is exact at both ends and differentiable everywhere."""

import abc
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float

from .._protocol.schedule import AbstractSchedule
from .._support.arithmetic import default_float


class AbstractCurve(AbstractSchedule):
    """Base class of schedules that are arithmetic on their fields, in JAX's default float dtype."""

    @abc.abstractmethod
    def value(self, t: Float[Array, "..."]) -> Any:
        """Return the value at step `t`."""

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """Return the value at a step, an integer or a float."""
        dtype = default_float()
        curve = jtu.tree_map(lambda x: jnp.asarray(x).astype(dtype), self)
        return jnp.asarray(curve.value(jnp.asarray(step).astype(dtype)))


def progress(t: Any, duration: Any) -> Any:
    """The elapsed fraction of a duration after `t` steps, in [0, 1]; 1 if the duration is zero."""
    takes_time = duration > 0
    return jnp.where(takes_time, jnp.clip(t / jnp.where(takes_time, duration, 1), 0, 1), 1)


def mix(a: Any, b: Any, x: Any) -> Any:
    """Interpolate from `a` to `b` as `x` goes from 0 to 1; exact at both ends, however far apart they are."""
    return a * (1 - x) + b * x


def half_cosine(x: Any) -> Any:
    r"""From 1 to 0 as `x` goes from 0 to 1: $\tfrac12 (1 + \cos \pi x)$, in a form without cancellation near 0."""
    return jnp.sin(0.5 * jnp.pi * (1 - x)) ** 2


def power(x: Any, exponent: Any) -> Any:
    """Compute `x ** exponent` for `x >= 0`; the derivative at zero, which may be infinite, is set to zero."""
    positive = x > 0
    return jnp.where(positive, jnp.where(positive, x, 1) ** exponent, jnp.where(exponent == 0, 1, 0).astype(x.dtype))


def after(t: Any, start: Any, before: Any, curve: Callable[[Any], Any]) -> Any:
    """The value `before`, and from step `start` on that of a curve that starts there."""
    begun = t >= start
    return jnp.where(begun, curve(jnp.where(begun, t - start, 0)), before)


def warmed_up(t: Any, init_value: Any, peak_value: Any, warmup_steps: Any, curve: Callable[[Any], Any]) -> Any:
    """A linear warm-up to the peak, then a curve that starts there."""
    warmup = mix(init_value, peak_value, progress(t, warmup_steps))
    return after(t, warmup_steps, warmup, curve)
