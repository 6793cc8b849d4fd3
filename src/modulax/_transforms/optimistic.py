"""Optimistic gradient descent: gradients extrapolated by their last change."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.module import AbstractState, counter
from .._support.types import Count, Shared


class ScaleByOptimisticGradientState(AbstractState):
    """State of `ScaleByOptimisticGradient`: step count, and the previous updates."""

    optax_fields: ClassVar[tuple[str, ...]] = ("is_initial_step", "previous_gradient")

    previous_gradient: PyTree
    count: Shared[Count] = counter()


class ScaleByOptimisticGradient(AbstractLeafwise[ScaleByOptimisticGradientState]):
    r"""Extrapolates the update by its last change, for games and other min-max problems (optimistic gradient descent).

    $$
    u_t = \alpha g_t + \beta (g_t - g_{t-1}), \qquad g_0 = g_1
    $$

    In a game, where the loss of each player depends on the others, this converges where gradient descent cycles.

    Args:
        alpha: weight $\alpha$ of the update.
        beta: weight $\beta$ of its change since the previous step.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    alpha: Number = number(1.0)
    beta: Number = number(1.0)

    def init_leaf(self, p):
        return ScaleByOptimisticGradientState(previous_gradient=jnp.zeros_like(p))

    def prepare(self, count):
        return count > 0

    def update_leaf(self, now, g, s, p):
        del p
        # The zeros of a fresh state are not a previous gradient.
        change = jnp.where(now, g - s.previous_gradient, 0)
        u = self.alpha * g + self.beta * change
        return u, ScaleByOptimisticGradientState(previous_gradient=g)
