"""COCOB: gradient descent by coin betting, without a learning rate."""

import jax.numpy as jnp

from .. import authoring as ma


class COCOBState(ma.AbstractState):
    """State of `ScaleByCOCOB`: initial parameters, and sums, maximum and reward of the gradients of each entry."""

    optax_fields = ("init_particles", "cumulative_gradients", "scale", "subgradients", "reward")

    init_particles: ma.PyTree = ma.like_params(copied=True)
    cumulative_gradients: ma.PyTree = ma.like_params(exact=True)
    scale: ma.PyTree = ma.like_params(exact=True)
    subgradients: ma.PyTree = ma.like_params(exact=True)
    reward: ma.PyTree = ma.like_params(exact=True)


class ScaleByCOCOB(ma.AbstractLeafwise[COCOBState]):
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

    _why_last = "computes the new parameters from the first ones"
    _negates = True
    needs = ("params", "real")

    alpha: ma.Number = ma.number(100.0)
    eps: ma.Number = ma.number(1e-8)

    def init_leaf(self, p):
        return COCOBState(
            init_particles=jnp.array(p),
            cumulative_gradients=ma.second_moment_like(p),
            scale=ma.second_moment_like(p, ma.at_start(self.eps)),
            subgradients=ma.second_moment_like(p),
            reward=ma.second_moment_like(p),
        )

    def update_leaf(self, now, g, s, p):
        del now
        size = jnp.maximum(s.scale, jnp.abs(g))
        way = s.subgradients + jnp.abs(g)
        theta = s.cumulative_gradients - g
        reward = jnp.maximum(s.reward - g * (p - s.init_particles), 0)
        # Two separate ratios, because the product of the denominators would overflow or underflow.
        bet = ma.ratio(theta, jnp.maximum(way + size, self.alpha * size)) * ma.ratio(size + reward, size)
        return s.init_particles - p + bet, COCOBState(s.init_particles, theta, size, way, reward)


class COCOB(ma.AbstractOptimizer):
    r"""Gradient descent by coin betting, which needs no learning rate.

        optimizer = COCOB()

    $$
    \begin{aligned}
    g_t &= \eta\, (\nabla f(w_t) + \lambda w_t) \\
    L_t &= \max(L_{t-1}, |g_t|), \qquad G_t = G_{t-1} + |g_t| \\
    R_t &= \max(R_{t-1} - g_t (w_t - w_0), 0), \qquad \theta_t = \theta_{t-1} - g_t \\
    w_{t+1} &= w_0 + \frac{\theta_t}{L_t \max(G_t + L_t, \alpha L_t)} (L_t + R_t)
    \end{aligned}
    $$

    in each coordinate, with $w_0$ the initial parameters, $L$ started from `eps`, and $G$, $R$ and $\theta$ from zero.

    Args:
        learning_rate: factor $\eta$ of the gradients, a number or a schedule; a constant has almost no effect on the
            steps.
        alpha: $\alpha$, which makes the first bets smaller.
        eps: initial value $L_0$ of the largest gradient.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Orabona and Tommasi, [Training Deep Networks without Learning Rates Through Coin
        Betting](https://arxiv.org/abs/1705.07795), 2017.
    """

    needs = ("real",)

    learning_rate: ma.Number = ma.number(1.0)
    alpha: ma.Number = ma.number(100.0)
    eps: ma.Number = ma.number(1e-8)
    weight_decay: ma.Number = ma.number(0.0)
    mask: ma.Mask = ma.mask()

    def transform(self) -> ma.Chain:
        return ma.Chain(
            ma.AddDecayedWeights(self.weight_decay, self.mask),
            ma.Scale(self.learning_rate),
            self._part(ScaleByCOCOB),
        )
