"""FOCUS: signs of a momentum, and an attraction to the average of the parameters."""

from typing import ClassVar

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.regularization import AbstractDecayingRule, split_decay


class ScaleByFOCUSState(ma.AbstractState):
    """State of `ScaleByFOCUS`: step count, momentum `mu`, and the average of the parameters."""

    mu: ma.PyTree = ma.like_params(moment=1.0)
    average: ma.PyTree = ma.like_params(exact=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractFOCUS(ma.AbstractFields):
    r"""The hyperparameters of FOCUS.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the average.
        gamma: strength $\gamma$ of the attraction.
        mu_dtype: dtype of the momentum; by default that of the parameters. The average is stored in at least float32.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    gamma: ma.Number = ma.number(0.1)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByFOCUS(AbstractFOCUS, AbstractDecayingRule[ScaleByFOCUSState]):
    r"""Takes the sign of a momentum, and adds an attraction to the average of the parameters: the direction of FOCUS.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    \bar w_t &= \bar w_{t-1} + \frac{1 - \beta_2}{1 - \beta_2^t} (w_t - \bar w_{t-1}) \\
    u_t &= \operatorname{sign}(m_t) + \gamma \operatorname{sign}(w_t - \bar w_t) + \lambda \bar w_t
    \end{aligned}
    $$

    $\bar w_t$ is the exponential moving average with bias correction. At the first step it is $w_1$, so that there is
    no attraction. The weight decay is that of the average.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the average.
        gamma: strength $\gamma$ of the attraction.
        mu_dtype: dtype of the momentum; by default that of the parameters. The average is stored in at least float32.
        weight_decay: weight decay coefficient $\lambda$; None for none.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Liu, Liu and Gore, [FOCUS: First Order Concentrated Updating Scheme](https://arxiv.org/abs/2501.12243), 2025,
        and the authors' [code](https://github.com/liuyz0/FOCUS).
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)  # pyright: ignore[reportIncompatibleMethodOverride]

    _: ma.KW_ONLY
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)
    mask: ma.Mask = ma.mask()

    def init_leaf(self, p):
        return ScaleByFOCUSState(mu=ma.zeros_in(p, self.mu_dtype), average=ma.zeros_in(p, ma.at_least_float32(p.dtype)))

    def prepare(self, count):
        return (1 - self.b2) / ma.bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        weight, decays = split_decay(now)
        mu = ma.moment(self.b1, s.mu, g)
        # A quotient of two averages would differ from the first parameters by rounding, of which the sign is taken.
        average = s.average + weight * (p - s.average)
        u = jnp.sign(mu) + self.gamma * jnp.sign(p - average) + self.decay_of(decays, average)
        return u, ScaleByFOCUSState(mu=mu, average=average)


class FOCUS(ma.AbstractDecayed, AbstractFOCUS, ma.AbstractRated):
    r"""Signum that also pulls the parameters towards their average, for noisy gradients in sharp valleys.

        optimizer = FOCUS(1e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    \bar w_t &= \bar w_{t-1} + \frac{1 - \beta_2}{1 - \beta_2^t} (w_t - \bar w_{t-1}) \\
    w_{t+1} &= w_t - \eta \left( \operatorname{sign}(m_t) + \gamma \operatorname{sign}(w_t - \bar w_t)
        + \lambda \bar w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = 0$. $\bar w_t$ is the exponential moving average
    with bias correction, $\bar w_1 = w_1$. The weight decay is that of the average.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the average.
        gamma: strength $\gamma$ of the attraction.
        mu_dtype: dtype of the momentum; by default that of the parameters. The average is stored in at least float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Liu, Liu and Gore, [FOCUS: First Order Concentrated Updating Scheme](https://arxiv.org/abs/2501.12243), 2025,
        and the authors' [code](https://github.com/liuyz0/FOCUS).
    """

    direction = ScaleByFOCUS
    learning_rate: ma.Number = ma.number(0.01)

    def decays(self):
        return []  # the direction has the weight decay of the average
