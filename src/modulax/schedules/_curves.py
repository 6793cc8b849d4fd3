"""Curves from one number to another."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._protocol.fields import Number, number
from .._support.checks import DECAY, NON_NEGATIVE, POSITIVE
from ._curve import AbstractCurve, half_cosine, mix, power, progress


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
    f(t) = a\, (1 - x) + b\, x, \qquad x = \operatorname{clip}\big((t - t_0) / T, 0, 1\big)
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
        return mix(self.init_value, self.end_value, progress(t - self.transition_begin, self.transition_steps))


class Polynomial(AbstractCurve):
    r"""A power of what is left of the transition, constant before and after. With a power of 1 it is a line.

    $$
    f(t) = (a - b) (1 - x)^p + b, \qquad x = \operatorname{clip}\big((t - t_0) / T, 0, 1\big)
    $$

    Args:
        init_value: the number $a$ at the start.
        end_value: the number $b$ at the end.
        power: the power $p$: above 1 it falls fast at first, below 1 at last.
        transition_steps: how many steps $T$ the transition takes.
        transition_begin: the step $t_0$ at which it begins.
    """

    init_value: Number = number()
    end_value: Number = number()
    power: Number = number(needs=NON_NEGATIVE)
    transition_steps: Number = number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)

    def value(self, t):
        left = 1 - progress(t - self.transition_begin, self.transition_steps)
        return mix(self.end_value, self.init_value, power(left, self.power))


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
    exponent: Number = number(1.0, needs=NON_NEGATIVE)

    def value(self, t):
        cosine = power(half_cosine(progress(t, self.decay_steps)), self.exponent)
        return self.init_value * mix(self.alpha, 1, cosine)


class ExponentialDecay(AbstractCurve):
    r"""A number that is multiplied by the same factor in every period.

    $$
    f(t) = a\, r^x, \qquad x = \max(t - t_0, 0) / T
    $$

    and, if `end_value` is given, no further than that: not below it where $r < 1$, not above it otherwise.

    Args:
        init_value: the number $a$ at the start.
        transition_steps: how many steps $T$ a period takes.
        decay_rate: the factor $r$ of a period.
        transition_begin: the step $t_0$ at which the decay begins.
        staircase: whether the factor is multiplied at the end of each period, $\lfloor x \rfloor$ for $x$, instead of
            little by little.
        end_value: the number at which the decay stops.
    """

    init_value: Number = number()
    transition_steps: Number = number(needs=POSITIVE)
    decay_rate: Number = number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NON_NEGATIVE)
    staircase: bool = eqx.field(static=True, default=False)
    end_value: Number | None = number(None, optional=True)

    def value(self, t):
        return exponential_decay(self, self.init_value, t)


def exponential_decay(curve: Any, init_value: Any, t: Any) -> Any:
    """The equation of `ExponentialDecay`, with the numbers of a curve that has its fields."""
    periods = jnp.maximum(t - curve.transition_begin, 0) / curve.transition_steps
    if curve.staircase:
        periods = jnp.floor(periods)
    decayed = init_value * curve.decay_rate**periods
    if curve.end_value is None:
        return decayed
    is_beyond = jnp.where(curve.decay_rate < 1, decayed < curve.end_value, decayed > curve.end_value)
    # Once more, because what has grown to infinity has no derivative, not even behind a `where`.
    decayed = init_value * curve.decay_rate ** jnp.where(is_beyond, 0, periods)
    return jnp.where(is_beyond, curve.end_value, decayed)


class REX(AbstractCurve):
    r"""The reflected exponential: slow at first, steep at last. Good on a small budget of steps.

    $$
    f(t) = c + (a - c)\, \frac{1 - x}{(1 - \beta) + \beta\, (1 - x)}, \qquad x = \min(t / T, 1)
    $$

    The paper has $\beta = \tfrac12$ and $c = 0$. With $\beta = 0$ it is a line.

    Args:
        init_value: the number $a$ at the start.
        decay_steps: how many steps $T$ the decay takes.
        end_value: the number $c$ at the end.
        beta: how far the curve bends away from the line.

    References:
        Chen, Wolfe and Kyrillidis, [REX: Revisiting Budgeted Training with an Improved
        Schedule](https://arxiv.org/abs/2107.04197), 2021.
    """

    init_value: Number = number()
    decay_steps: Number = number(needs=POSITIVE)
    end_value: Number = number(0.0)
    beta: Number = number(0.5, needs=DECAY)

    def value(self, t):
        left = 1 - progress(t, self.decay_steps)
        return mix(self.end_value, self.init_value, left / mix(1, left, self.beta))
