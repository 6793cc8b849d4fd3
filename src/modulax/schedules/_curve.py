"""What all curves are made of: arithmetic that is exact at the ends and differentiable everywhere."""

import abc
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float

from .._protocol.schedule import AbstractSchedule
from .._support.arithmetic import default_float


class AbstractCurve(AbstractSchedule):
    """A schedule that is arithmetic on its numbers, all in JAX's default float dtype."""

    @abc.abstractmethod
    def value(self, t: Float[Array, "..."]) -> Any:
        """The number at step `t`."""

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """The number at a step, an integer or a float."""
        dtype = default_float()
        curve = jtu.tree_map(lambda x: jnp.asarray(x).astype(dtype), self)
        return jnp.asarray(curve.value(jnp.asarray(step).astype(dtype)))


def progress(t: Any, duration: Any) -> Any:
    """How much of a duration is over after `t` steps, from 0 to 1; all of it, if it takes no time."""
    takes_time = duration > 0
    return jnp.where(takes_time, jnp.clip(t / jnp.where(takes_time, duration, 1), 0, 1), 1)


def mix(a: Any, b: Any, x: Any) -> Any:
    """From `a` to `b` as `x` goes from 0 to 1: exactly these two at the ends, however far apart they are."""
    return a * (1 - x) + b * x


def half_cosine(x: Any) -> Any:
    r"""From 1 to 0 as `x` goes from 0 to 1: $\tfrac12 (1 + \cos \pi x)$, written so that nothing cancels near 0."""
    return jnp.sin(0.5 * jnp.pi * (1 - x)) ** 2


def power(x: Any, exponent: Any) -> Any:
    """`x ** exponent` for what is not negative. The derivative at zero is zero, which may have been infinite."""
    positive = x > 0
    return jnp.where(positive, jnp.where(positive, x, 1) ** exponent, jnp.where(exponent == 0, 1, 0).astype(x.dtype))


def after(t: Any, start: Any, before: Any, curve: Callable[[Any], Any]) -> Any:
    """The number `before`, and from `start` on that of a curve that begins there."""
    begun = t >= start
    return jnp.where(begun, curve(jnp.where(begun, t - start, 0)), before)


def warmed_up(t: Any, init_value: Any, peak_value: Any, warmup_steps: Any, curve: Callable[[Any], Any]) -> Any:
    """A line up to the peak, then a curve that begins there."""
    warmup = mix(init_value, peak_value, progress(t, warmup_steps))
    return after(t, warmup_steps, warmup, curve)
