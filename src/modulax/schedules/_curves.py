"""Basic schedules: constant, linear, polynomial, cosine, exponential."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._support.checks import DECAY, NON_NEGATIVE, POSITIVE
from ._base import AbstractCurve, half_cosine, mix, power, progress


class Constant(AbstractCurve):
    """Constant schedule, $f(t) = c$.

    Args:
        constant: $c$, value at every step.
    """

    constant: Number = required_number()

    def value(self, t):
        return jnp.broadcast_to(self.constant, jnp.broadcast_shapes(t.shape, jnp.shape(self.constant)))


class Linear(AbstractCurve):
    r"""Linear schedule from an initial to an end value, constant before and after.

    $$
    f(t) = a\, (1 - x) + b\, x, \qquad x = \operatorname{clip}\big((t - t_0) / T, 0, 1\big)
    $$

    Args:
        init_value: $a$, initial value.
        end_value: $b$, end value.
        transition_steps: $T$, number of steps of the transition.
        transition_begin: $t_0$, step at which the transition begins.
    """

    init_value: Number = required_number()
    end_value: Number = required_number()
    transition_steps: Number = required_number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)

    def value(self, t):
        return mix(self.init_value, self.end_value, progress(t - self.transition_begin, self.transition_steps))


class Polynomial(AbstractCurve):
    r"""Polynomial decay (or growth) from an initial to an end value, constant before and after.

    $$
    f(t) = (a - b) (1 - x)^p + b, \qquad x = \operatorname{clip}\big((t - t_0) / T, 0, 1\big)
    $$

    With $p = 1$ it is `Linear`.

    Args:
        init_value: $a$, initial value.
        end_value: $b$, end value.
        power: $p$, exponent: above 1 most of the change comes early, below 1 it comes late.
        transition_steps: $T$, number of steps of the transition.
        transition_begin: $t_0$, step at which the transition begins.
    """

    init_value: Number = required_number()
    end_value: Number = required_number()
    power: Number = required_number(needs=NON_NEGATIVE)
    transition_steps: Number = required_number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)

    def value(self, t):
        left = 1 - progress(t - self.transition_begin, self.transition_steps)
        return mix(self.end_value, self.init_value, power(left, self.power))


class CosineDecay(AbstractCurve):
    r"""Cosine decay from an initial value to a fraction of it.

    $$
    f(t) = a \left((1 - \alpha) \left(\tfrac12 (1 + \cos \pi x)\right)^p + \alpha\right), \qquad x = \min(t / T, 1)
    $$

    Args:
        init_value: $a$, initial value.
        decay_steps: $T$, number of decay steps.
        alpha: $\alpha$, end value as a fraction of the initial value.
        exponent: $p$, exponent of the cosine.

    References:
        Loshchilov and Hutter, [SGDR: Stochastic Gradient Descent with Warm Restarts](https://arxiv.org/abs/1608.03983),
        2016.
    """

    init_value: Number = required_number()
    decay_steps: Number = required_number(needs=POSITIVE)
    alpha: Number = number(0.0)
    exponent: Number = number(1.0, needs=NON_NEGATIVE)

    def value(self, t):
        cosine = power(half_cosine(progress(t, self.decay_steps)), self.exponent)
        return self.init_value * mix(self.alpha, 1, cosine)


class ExponentialDecay(AbstractCurve):
    r"""Exponential decay: the value is multiplied by a constant factor per period.

    $$
    f(t) = a\, r^x, \qquad x = \max(t - t_0, 0) / T
    $$

    If `end_value` is given, it bounds the decay: from below for $r < 1$, from above otherwise.

    Args:
        init_value: $a$, initial value.
        transition_steps: $T$, number of steps per period.
        decay_rate: $r$, factor per period.
        transition_begin: $t_0$, step at which the decay begins.
        staircase: whether to decay in steps at the end of each period, $\lfloor x \rfloor$ instead of $x$.
        end_value: value at which the decay stops.
    """

    init_value: Number = required_number()
    transition_steps: Number = required_number(needs=POSITIVE)
    decay_rate: Number = required_number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)
    staircase: bool = eqx.field(static=True, default=False)
    end_value: OptionalNumber = number(None, optional=True)

    def value(self, t):
        return exponential_decay(self, self.init_value, t)


def exponential_decay(curve: Any, init_value: Any, t: Any) -> Any:
    """The equation of `ExponentialDecay`, for a schedule that has its fields."""
    periods = jnp.maximum(t - curve.transition_begin, 0) / curve.transition_steps
    if curve.staircase:
        periods = jnp.floor(periods)
    decayed = init_value * curve.decay_rate**periods
    if curve.end_value is None:
        return decayed
    is_beyond = jnp.where(curve.decay_rate < 1, decayed < curve.end_value, decayed > curve.end_value)
    # Compute it again where it is bounded: a value that overflowed has no derivative, and `where` alone would not
    # keep the NaN out of the gradient.
    decayed = init_value * curve.decay_rate ** jnp.where(is_beyond, 0, periods)
    return jnp.where(is_beyond, curve.end_value, decayed)


class REX(AbstractCurve):
    r"""Reflected exponential (REX) decay: slow at first and steep at the end, for small training budgets.

    $$
    f(t) = c + (a - c)\, \frac{1 - x}{(1 - \beta) + \beta\, (1 - x)}, \qquad x = \min(t / T, 1)
    $$

    The paper uses $\beta = \tfrac12$ and $c = 0$. With $\beta = 0$ it is linear.

    Args:
        init_value: $a$, initial value.
        decay_steps: $T$, number of decay steps.
        end_value: $c$, end value.
        beta: $\beta \in [0, 1)$, curvature: how far the curve bends away from a line.

    References:
        Chen, Wolfe and Kyrillidis, [REX: Revisiting Budgeted Training with an Improved
        Schedule](https://arxiv.org/abs/2107.04197), 2021.
    """

    init_value: Number = required_number()
    decay_steps: Number = required_number(needs=POSITIVE)
    end_value: Number = number(0.0)
    beta: Number = number(0.5, needs=DECAY)

    def value(self, t):
        left = 1 - progress(t, self.decay_steps)
        return mix(self.end_value, self.init_value, left / mix(1, left, self.beta))
