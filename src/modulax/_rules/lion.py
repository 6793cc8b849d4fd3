"""Lion: the sign of an interpolation between momentum and gradient."""

from typing import Literal

import jax.numpy as jnp

from .. import authoring as ma


class ScaleByLionState(ma.AbstractState):
    """State of `ScaleByLion`: step count and momentum."""

    optax_fields = ("count", "mu")

    mu: ma.PyTree = ma.like_params(moment=1.0)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractLion(ma.AbstractFields):
    r"""The hyperparameters of Lion.

    Args:
        b1: weight $\beta_1$ of the momentum in the interpolation $c_t$.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByLion(AbstractLion, ma.AbstractLeafwise[ScaleByLionState]):
    r"""Takes the sign of an interpolation between momentum and update: the direction of Lion.

    $$
    \begin{aligned}
    c_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    m_t &= \beta_2 m_{t-1} + (1 - \beta_2) g_t \\
    u_t &= \operatorname{sign}(c_t)
    \end{aligned}
    $$

    The sign is discontinuous at zero. `mode` selects a continuous replacement: $u_t = \tanh(\kappa c_t)$, `"smooth"`,
    or $u_t = c_t / \max(1, |c_t|)$, `"refined"`, the identity up to 1 and the sign beyond. For a complex number the
    sign is $c / |c|$, and the replacements act on the absolute value.

    Args:
        b1: weight $\beta_1$ of the momentum in the interpolation $c_t$.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        mode: `"hard"` for the sign, `"smooth"` or `"refined"` for a continuous replacement.
        smooth_beta: slope $\kappa$ of the smooth sign at zero.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    _: ma.KW_ONLY
    mode: Literal["hard", "smooth", "refined"] = ma.static("hard")
    smooth_beta: ma.Number = ma.number(1.0)

    def init_leaf(self, p):
        return ScaleByLionState(mu=ma.zeros_in(p, self.mu_dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        c = ma.moment(self.b1, s.mu, g)
        mu = ma.moment(self.b2, s.mu, g)
        return self._sign(c), ScaleByLionState(mu=mu)

    def _sign(self, c: ma.Array) -> ma.Array:
        if self.mode == "hard":
            return jnp.sign(c)
        if self.mode == "refined":
            return jnp.where(jnp.abs(c) < 1, c, jnp.sign(c))
        if jnp.iscomplexobj(c):
            # `tanh` of a complex number has poles. The sign keeps the phase.
            return jnp.tanh(self.smooth_beta * jnp.abs(c)) * jnp.sign(c)
        return jnp.tanh(self.smooth_beta * c)


class Lion(ma.AbstractDecayed, AbstractLion, ma.AbstractRated):
    r"""Sign-based momentum optimizer with half the state of Adam: every coordinate moves by exactly the learning rate.

        optimizer = Lion(1e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    c_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    m_t &= \beta_2 m_{t-1} + (1 - \beta_2) g_t \\
    w_{t+1} &= w_t - \eta (\operatorname{sign}(c_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$. Compared with AdamW, the learning rate should be about 3 to 10 times
    smaller, and the weight decay coefficient larger by the same factor.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: weight $\beta_1$ of the momentum in the interpolation $c_t$.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    direction = ScaleByLion
    weight_decay: ma.Number = ma.number(1e-3)
