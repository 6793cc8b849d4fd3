"""FOCUS: signs of a momentum, and an attraction to the average of the parameters."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.masks import as_labels
from .._support.arithmetic import at_least_float32, bias, moment, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from .regularization import AbstractDecayingRule, split_decay


class ScaleByFOCUSState(AbstractState):
    """State of `ScaleByFOCUS`: step count, momentum `mu`, and the average of the parameters."""

    mu: PyTree = like_params(moment=1.0)
    average: PyTree = like_params(exact=True)
    count: Shared[Count] = counter()


class ScaleByFOCUS(AbstractDecayingRule[ScaleByFOCUSState]):
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

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    gamma: Number = number(0.1)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def init_leaf(self, p):
        return ScaleByFOCUSState(mu=zeros_in(p, self.mu_dtype), average=zeros_in(p, at_least_float32(p.dtype)))

    def prepare(self, count):
        return (1 - self.b2) / bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        weight, decays = split_decay(now)
        mu = moment(self.b1, s.mu, g)
        # A quotient of two averages would differ from the first parameters by rounding, of which the sign is taken.
        average = s.average + weight * (p - s.average)
        u = jnp.sign(mu) + self.gamma * jnp.sign(p - average) + self.decay_of(decays, average)
        return u, ScaleByFOCUSState(mu=mu, average=average)
