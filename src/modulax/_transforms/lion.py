"""Lion: the sign of an interpolation between momentum and gradient."""

from dataclasses import KW_ONLY
from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import moment, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared


class ScaleByLionState(AbstractState):
    """State of `ScaleByLion`: step count and momentum."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu")

    mu: PyTree = like_params(moment=1.0)
    count: Shared[Count] = counter()


class ScaleByLion(AbstractLeafwise[ScaleByLionState]):
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
        b1: weight $\beta_1$ of the momentum in the interpolation.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        mode: `"hard"` for the sign, `"smooth"` or `"refined"` for a continuous replacement.
        smooth_beta: slope $\kappa$ of the smooth sign at zero.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    mode: Literal["hard", "smooth", "refined"] = eqx.field(static=True, default="hard")
    smooth_beta: Number = number(1.0)

    def init_leaf(self, p):
        return ScaleByLionState(mu=zeros_in(p, self.mu_dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        c = moment(self.b1, s.mu, g)
        mu = moment(self.b2, s.mu, g)
        return self._sign(c), ScaleByLionState(mu=mu)

    def _sign(self, c: Array) -> Array:
        if self.mode == "hard":
            return jnp.sign(c)
        if self.mode == "refined":
            return jnp.where(jnp.abs(c) < 1, c, jnp.sign(c))
        if jnp.iscomplexobj(c):
            # `tanh` of a complex number has poles. The sign keeps the phase.
            return jnp.tanh(self.smooth_beta * jnp.abs(c)) * jnp.sign(c)
        return jnp.tanh(self.smooth_beta * c)
