"""Adagrad: gradients divided by the root of the sum of their squares."""

import jax.numpy as jnp

from .. import authoring as ma


class ScaleByRSSState(ma.AbstractState):
    """State of `ScaleByRSS`: the sum of all squared updates."""

    optax_fields = ("sum_of_squares",)

    sum_of_squares: ma.PyTree = ma.like_params(nonnegative=True)


class AbstractAdagrad(ma.AbstractFields):
    r"""The hyperparameters of Adagrad.

    Args:
        initial_accumulator_value: initial value $s_0$ of the sum of squares.
        eps: $\varepsilon$, added to the sum of squares inside the root.
    """

    initial_accumulator_value: ma.Number = ma.number(0.1, needs=ma.NON_NEGATIVE)
    eps: ma.Number = ma.number(1e-7)


class ScaleByRSS(AbstractAdagrad, ma.AbstractLeafwise[ScaleByRSSState]):
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

    def init_leaf(self, p):
        return ScaleByRSSState(sum_of_squares=ma.second_moment_like(p, ma.at_start(self.initial_accumulator_value)))

    def update_leaf(self, now, g, s, p):
        del now, p
        total = s.sum_of_squares + ma.abs_sq(g)
        # An entry whose gradients were all zero has a root of zero if the first value is zero; so has one with a sum
        # below zero, which optax allows.
        root = jnp.where(total <= 0, 0, ma.safe_sqrt(self.eps + total))  # NaN for a NaN
        return ma.ratio(g, root), ScaleByRSSState(sum_of_squares=total)


class Adagrad(AbstractAdagrad, ma.AbstractRated):
    r"""Adaptive gradient descent for sparse gradients: divides by the root of the sum of squared gradients.

        optimizer = Adagrad(0.01)

    $$
    \begin{aligned}
    s_t &= s_{t-1} + |g_t|^2 \\
    w_{t+1} &= w_t - \eta\, g_t / \sqrt{s_t + \varepsilon}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$. Steps get shorter as the sum grows; coordinates with rare or small gradients keep
    long ones.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        initial_accumulator_value: initial value $s_0$ of the sum of squares.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Duchi, Hazan and Singer, [Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization](https://jmlr.org/papers/v12/duchi11a.html), 2011.
    """

    direction = ScaleByRSS
