"""COCOB: gradient descent by coin betting, without a learning rate."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule_values import at_start
from .._support.arithmetic import ratio, second_moment_like
from .._support.module import AbstractState, like_params


class COCOBState(AbstractState):
    """State of `ScaleByCOCOB`: initial parameters, and sums, maximum and reward of the gradients of each entry."""

    optax_fields: ClassVar[tuple[str, ...]] = (
        "init_particles",
        "cumulative_gradients",
        "scale",
        "subgradients",
        "reward",
    )

    init_particles: PyTree = like_params(copied=True)
    cumulative_gradients: PyTree = like_params(exact=True)
    scale: PyTree = like_params(exact=True)
    subgradients: PyTree = like_params(exact=True)
    reward: PyTree = like_params(exact=True)


class ScaleByCOCOB(AbstractLeafwise[COCOBState]):
    r"""Coin betting: each entry bets a fraction of its reward on the next gradient, so that no learning rate is needed.

    $$
    \begin{aligned}
    L_t &= \max(L_{t-1}, |g_t|), \qquad G_t = G_{t-1} + |g_t| \\
    R_t &= \max(R_{t-1} - g_t (w_t - w_0), 0), \qquad \theta_t = \theta_{t-1} - g_t \\
    w_{t+1} &= w_0 + \frac{\theta_t}{L_t \max(G_t + L_t, \alpha L_t)} (L_t + R_t)
    \end{aligned}
    $$

    The result is the full step $w_{t+1} - w_t$, so no learning rate may follow. Entries whose gradients have all been
    zero keep their value.

    Args:
        alpha: $\alpha$, which makes the first bets smaller.
        eps: initial value $L_0$ of the largest gradient.

    References:
        Orabona and Tommasi, [Training Deep Networks without Learning Rates Through Coin
        Betting](https://arxiv.org/abs/1705.07795), 2017.
    """

    _why_last: ClassVar[str] = "computes the new parameters from the first ones"
    _negates: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("params", "real")

    alpha: Number = number(100.0)
    eps: Number = number(1e-8)

    def init_leaf(self, p):
        return COCOBState(
            init_particles=jnp.array(p),
            cumulative_gradients=second_moment_like(p),
            scale=second_moment_like(p, at_start(self.eps)),
            subgradients=second_moment_like(p),
            reward=second_moment_like(p),
        )

    def update_leaf(self, now, g, s, p):
        del now
        size = jnp.maximum(s.scale, jnp.abs(g))
        way = s.subgradients + jnp.abs(g)
        theta = s.cumulative_gradients - g
        reward = jnp.maximum(s.reward - g * (p - s.init_particles), 0)
        # Two separate ratios, because the product of the denominators would overflow or underflow.
        bet = ratio(theta, jnp.maximum(way + size, self.alpha * size)) * ratio(size + reward, size)
        return s.init_particles - p + bet, COCOBState(s.init_particles, theta, size, way, reward)
