"""RMSProp: updates divided by their root mean square, or by their standard deviation."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.schedule_values import at_start
from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    bias,
    moment,
    safe_sqrt,
    second_moment_like,
    without_infinities,
)
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared


class ScaleByRMSState(AbstractState):
    """State of `ScaleByRMS`: step count and second moment."""

    optax_fields: ClassVar[tuple[str, ...]] = ("nu",)

    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByRMS(AbstractLeafwise[ScaleByRMSState]):
    r"""Divides the updates by the root of their second moment: the direction of RMSProp.

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t + \varepsilon} \quad\text{or}\quad g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: exponential decay rate $\beta$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, the first form, or outside, the second.
        bias_correction: whether to divide $v_t$ by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012.
    """

    decay: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-8)
    initial_scale: Number = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    bias_correction: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        return ScaleByRMSState(nu=second_moment_like(p, at_start(self.initial_scale)))

    def prepare(self, count):
        return bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        nu = moment(self.decay, s.nu, abs_sq(g))
        nu_hat = nu / now if self.bias_correction else nu
        u = g / root_with_eps(nu_hat, self.eps, self.eps_in_sqrt)
        return u, ScaleByRMSState(nu=nu)


class ScaleByStddevState(AbstractState):
    """State of `ScaleByStddev`: step count, first and second moment."""

    optax_fields: ClassVar[tuple[str, ...]] = ("mu", "nu")

    # Exact, because a difference of the two is divided by.
    mu: PyTree = like_params(exact=True, moment=1.0)
    nu: PyTree = like_params(exact=True, nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByStddev(AbstractLeafwise[ScaleByStddevState]):
    r"""Divides the updates by their standard deviation: the direction of centered RMSProp.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t - |m_t|^2 + \varepsilon}
        \quad\text{or}\quad g_t / (\sqrt{v_t - |m_t|^2} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: exponential decay rate $\beta$ of both moments.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, the first form, or outside, the second.
        bias_correction: whether to divide both moments by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    decay: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-8)
    initial_scale: Number = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    bias_correction: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        # The square of the mean is subtracted from the second moment: a mean in bfloat16 would leave its rounding.
        dtype = at_least_float32(p.dtype)
        return ScaleByStddevState(mu=jnp.zeros_like(p, dtype), nu=second_moment_like(p, at_start(self.initial_scale)))

    def prepare(self, count):
        return bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.decay, s.mu, g)
        nu = moment(self.decay, s.nu, abs_sq(g))
        mu_hat, nu_hat = (mu / now, nu / now) if self.bias_correction else (mu, nu)
        # Rounding can make this difference negative, and two infinities have none.
        variance = jnp.maximum(nu_hat - without_infinities(abs_sq(mu_hat)), 0)
        u = g / root_with_eps(variance, self.eps, self.eps_in_sqrt)
        return u, ScaleByStddevState(mu=mu, nu=nu)


def root_with_eps(x: Array, eps: Any, inside: bool) -> Array:
    """The square root of `x`, with `eps` added inside or outside."""
    return safe_sqrt(eps + x) if inside else eps + safe_sqrt(x)
