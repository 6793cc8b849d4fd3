"""NovoGrad: momentum of normalized gradients, with one second moment per array."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, moment, real_dtype, safe_sqrt, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from .regularization import decayed


class ScaleByNovoGradState(AbstractState):
    """State of `ScaleByNovoGrad`: step count, momentum `mu`, and `nu`, the mean squared norm of each array."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu")

    mu: PyTree
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByNovoGrad(AbstractLeafwise[ScaleByNovoGradState]):
    r"""Accumulates updates divided by the root of their mean squared norm, array by array: the direction of NovoGrad.

    $$
    \begin{aligned}
    v_1 &= \|g_1\|^2, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2 \\
    m_t &= \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t, \qquad m_0 = 0 \\
    u_t &= m_t
    \end{aligned}
    $$

    The second moment $v_t$ is a single number per array. The weight decay is part of the momentum. The momentum is a
    sum, not an average, so steps become $1 / (1 - \beta_1)$ times as long as without it. The default of $\beta_2$ is
    that of optax; the paper's is 0.98.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$.
        mu_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.25, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    weight_decay: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        # A sum over the whole array, which a low-precision dtype could not hold.
        nu = jnp.zeros((), at_least_float32(real_dtype(p.dtype)))
        return ScaleByNovoGradState(mu=zeros_in(p, self.mu_dtype), nu=nu)

    def prepare(self, count):
        return count == 0

    def update_leaf(self, now, g, s, p):
        square = jnp.sum(abs_sq(g))
        # The average starts at the first value, as in the paper, and needs no bias correction.
        nu = jnp.where(now, square, moment(self.b2, s.nu, square))
        mu = self.b1 * s.mu + g / (self.eps + safe_sqrt(self.eps_root + nu)) + decayed(self.weight_decay, p)
        return mu, ScaleByNovoGradState(mu=mu, nu=nu)
