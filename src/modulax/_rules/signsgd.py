"""signSGD and Signum: the sign of the gradient, and of its moving average."""

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.momentum import Ema


class ScaleBySign(ma.AbstractLeafwise):
    r"""Replaces every entry by its sign: $u = \operatorname{sign}(g)$.

    The sign of zero is zero, that of a complex entry $g / |g|$.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.sign(g), s


class SignSGD(ma.AbstractRated):
    r"""Gradient descent by the sign of the gradient: every coordinate moves by exactly the learning rate.

        optimizer = SignSGD(1e-3)

    $$
    w_{t+1} = w_t - \eta \operatorname{sign}(g_t)
    $$

    with $g_t$ the gradient at $w_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    direction = ScaleBySign


class Signum(ma.AbstractRated):
    r"""SignSGD with momentum: every coordinate moves by exactly the learning rate, by the sign of the momentum.

        optimizer = Signum(1e-3, beta=0.9)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \operatorname{sign}(m_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the first moment.
        accumulator_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Bernstein et al., [signSGD: Compressed Optimisation for Non-Convex
        Problems](https://arxiv.org/abs/1802.04434), 2018.
    """

    direction = ScaleBySign
    beta: ma.Number = ma.number(0.9, needs=ma.DECAY)
    accumulator_dtype: ma.DTypeLike | None = ma.static(None)

    def directions(self):
        average = self._part(Ema, decay=self.beta, debias=False)  # the correction changes no sign
        return [average, *super().directions()]
