"""Adagrad: gradients divided by the root of the sum of their squares."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule_values import at_start
from .._support.arithmetic import abs_sq, ratio, safe_sqrt, second_moment_like
from .._support.checks import NON_NEGATIVE
from .._support.module import AbstractState, like_params


class ScaleByRSSState(AbstractState):
    """State of `ScaleByRSS`: the sum of all squared updates."""

    optax_fields: ClassVar[tuple[str, ...]] = ("sum_of_squares",)

    sum_of_squares: PyTree = like_params(nonnegative=True)


class ScaleByRSS(AbstractLeafwise[ScaleByRSSState]):
    r"""Divides the updates by the root of the sum of all their squares: the direction of Adagrad.

    $$
    s_t = s_{t-1} + |g_t|^2, \qquad u_t = g_t / \sqrt{s_t + \varepsilon}
    $$

    An entry is zero where its denominator is. The paper adds a constant outside the root; here $s_0 > 0$ and
    $\varepsilon$ inside the root bound the first steps.

    Args:
        initial_accumulator_value: initial value $s_0$ of the sum of squares.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Duchi, Hazan and Singer, [Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization](https://jmlr.org/papers/v12/duchi11a.html), 2011.
    """

    initial_accumulator_value: Number = number(0.1, needs=NON_NEGATIVE)
    eps: Number = number(1e-7)

    def init_leaf(self, p):
        return ScaleByRSSState(sum_of_squares=second_moment_like(p, at_start(self.initial_accumulator_value)))

    def update_leaf(self, now, g, s, p):
        del now, p
        total = s.sum_of_squares + abs_sq(g)
        # An entry whose gradients were all zero has a root of zero if the first value is zero; so has one with a sum
        # below zero, which optax allows.
        root = jnp.where(total <= 0, 0, safe_sqrt(self.eps + total))  # NaN for a NaN
        return ratio(g, root), ScaleByRSSState(sum_of_squares=total)
