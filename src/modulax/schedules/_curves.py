"""Curves over the steps of a run."""

import abc
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from .._checks import NON_NEGATIVE, POSITIVE
from .._numerics import default_float
from .._schedule import AbstractSchedule, Number, as_number, number, numbers


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


class Constant(AbstractCurve):
    r"""The same number at every step: $f(t) = c$.

    Args:
        constant: $c$.
    """

    constant: Number = number()

    def value(self, t):
        return jnp.broadcast_to(self.constant, jnp.broadcast_shapes(t.shape, jnp.shape(self.constant)))


class Linear(AbstractCurve):
    r"""A line from one number to another, constant before and after.

    $$
    f(t) = a + (b - a)\, x, \qquad x = \operatorname{clip}\big((t - t_0) / T, 0, 1\big)
    $$

    Args:
        init_value: the number $a$ at the start.
        end_value: the number $b$ at the end.
        transition_steps: how many steps $T$ the transition takes.
        transition_begin: the step $t_0$ at which it begins.
    """

    init_value: Number = number()
    end_value: Number = number()
    transition_steps: Number = number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)

    def value(self, t):
        x = jnp.clip((t - self.transition_begin) / self.transition_steps, 0, 1)
        return self.init_value + (self.end_value - self.init_value) * x


class CosineDecay(AbstractCurve):
    r"""Half a period of a cosine, from the initial value down to a fraction of it.

    $$
    f(t) = a \left((1 - \alpha) \left(\tfrac12 (1 + \cos \pi x)\right)^p + \alpha\right), \qquad x = \min(t / T, 1)
    $$

    Args:
        init_value: the number $a$ at the start.
        decay_steps: how many steps $T$ the decay takes.
        alpha: the fraction of the initial value that is left at the end.
        exponent: the power $p$.

    References:
        Loshchilov and Hutter, [SGDR: Stochastic Gradient Descent with Warm
        Restarts](https://arxiv.org/abs/1608.03983), 2016.
    """

    init_value: Number = number()
    decay_steps: Number = number(needs=POSITIVE)
    alpha: Number = number(0.0)
    exponent: Number = number(1.0)

    def value(self, t):
        cosine = _half_cosine(t / self.decay_steps) ** self.exponent
        return self.init_value * ((1 - self.alpha) * cosine + self.alpha)


class WarmupCosineDecay(AbstractCurve):
    r"""A linear warm-up, then half a period of a cosine. The usual learning rate of a transformer.

    $$
    f(t) = \begin{cases}
        a + (b - a)\, t / W & t < W \\
        c + (b - c) \left(\tfrac12 (1 + \cos \pi x)\right)^p, \quad x = \min\big((t - W) / (T - W), 1\big) & t \ge W
    \end{cases}
    $$

    Args:
        init_value: the number $a$ at the start.
        peak_value: the number $b$ after the warm-up.
        warmup_steps: how many steps $W$ the warm-up takes.
        decay_steps: the length $T$ of the whole schedule, the warm-up included.
        end_value: the number $c$ at the end.
        exponent: the power $p$ of the decay.
    """

    init_value: Number = number()
    peak_value: Number = number()
    warmup_steps: Number = number(needs=NON_NEGATIVE)
    decay_steps: Number = number(needs=POSITIVE)
    end_value: Number = number(0.0)
    exponent: Number = number(1.0)

    def __check_init__(self) -> None:
        w, d = self.warmup_steps, self.decay_steps
        if not isinstance(w - d, Tracer) and np.any(w >= d):
            raise ValueError(
                f"`WarmupCosineDecay(decay_steps=...)` is the length of the whole schedule and must be more than "
                f"`warmup_steps={w}`, got {d}."
            )

    def value(self, t):
        w, d = self.warmup_steps, self.decay_steps
        warmup = self.init_value + (self.peak_value - self.init_value) * t / jnp.where(w > 0, w, 1)
        cosine = _half_cosine((t - w) / (d - w)) ** self.exponent
        decay = self.end_value + (self.peak_value - self.end_value) * cosine
        return jnp.where(t < w, warmup, decay)


class PiecewiseConstant(AbstractCurve):
    r"""A number that is multiplied by a factor at each of some steps.

    $$
    f(t) = a \prod_{i:\, t \ge t_i} c_i
    $$

    The change takes effect at the boundary itself (Keras changes one step later).

    Args:
        init_value: the number $a$ at the start.
        boundaries_and_scales: a mapping from the step $t_i$ to the factor $c_i$.
    """

    init_value: Number = number()
    boundaries: tuple[Number, ...] = numbers()
    scales: tuple[Number, ...] = numbers()

    def __init__(self, init_value: Number, boundaries_and_scales: Mapping[Any, Number] | None = None):
        changes = dict(boundaries_and_scales or {})
        self.init_value = init_value
        self.boundaries = tuple(changes)
        self.scales = tuple(changes.values())

    def value(self, t):
        out = jnp.broadcast_to(self.init_value, t.shape)
        for boundary, scale in zip(self.boundaries, self.scales, strict=True):
            out = jnp.where(t >= boundary, out * scale, out)
        return out


class Join(AbstractSchedule):
    r"""Schedules one after the other; each counts its own steps from the boundary at which it begins.

    $$
    f(t) = f_i(t - t_i) \quad\text{for } t_i \le t < t_{i+1}, \qquad t_0 = 0
    $$

    Args:
        schedules: the schedules $f_i$, or numbers.
        boundaries: the steps $t_1, t_2, \dots$ at which the second and the further ones begin.
    """

    schedules: tuple[AbstractSchedule, ...]
    boundaries: tuple[Number, ...] = numbers()

    def __init__(self, schedules: Any, boundaries: Any):
        found = tuple(x if isinstance(x := as_number(s), AbstractSchedule) else Constant(x) for s in schedules)
        self.schedules = found
        self.boundaries = tuple(boundaries)
        if len(self.schedules) != len(self.boundaries) + 1:
            raise ValueError(
                f"`Join` needs one boundary between each two schedules, got {len(self.schedules)} schedules and "
                f"{len(self.boundaries)} boundaries."
            )

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """The number of the schedule whose turn it is."""
        step = jnp.asarray(step)
        out = self.schedules[0](step)
        for schedule, boundary in zip(self.schedules[1:], self.boundaries, strict=True):
            start = jnp.asarray(boundary).astype(step.dtype)
            out = jnp.where(step < start, out, schedule(step - start))
        return out


def _half_cosine(x: Array) -> Array:
    """From one to zero as `x` goes from zero to one."""
    return 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(x, 0, 1)))
