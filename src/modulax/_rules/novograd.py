"""NovoGrad: momentum of normalized gradients, with one second moment per array."""

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import real_dtype
from .._transforms.regularization import decayed


class ScaleByNovoGradState(ma.AbstractState):
    """State of `ScaleByNovoGrad`: step count, momentum `mu`, and `nu`, the mean squared norm of each array."""

    optax_fields = ("count", "mu", "nu")

    mu: ma.PyTree
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractNovoGrad(ma.AbstractMoments):
    r"""The hyperparameters of NovoGrad.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment. The default is that of optax; the paper's is 0.98.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$; the decay is part of the momentum.
    """

    b2: ma.Number = ma.number(0.25, needs=ma.DECAY)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    weight_decay: ma.Number = ma.number(0.0)


class ScaleByNovoGrad(AbstractNovoGrad, ma.AbstractLeafwise[ScaleByNovoGradState]):
    r"""Accumulates updates divided by the root of their mean squared norm, array by array: the direction of NovoGrad.

    $$
    \begin{aligned}
    v_1 &= \|g_1\|^2, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2 \\
    m_t &= \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t, \qquad m_0 = 0 \\
    u_t &= m_t
    \end{aligned}
    $$

    The second moment $v_t$ is a single number per array. The momentum is a sum, not an average, so steps become
    $1 / (1 - \beta_1)$ times as long as without it.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment. The default is that of optax; the paper's is 0.98.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$; the decay is part of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    needs = ("params",)

    _: ma.KW_ONLY
    mu_dtype: ma.DTypeLike | None = ma.static(None)

    def init_leaf(self, p):
        # A sum over the whole array, which a low-precision dtype could not hold.
        nu = jnp.zeros((), ma.at_least_float32(real_dtype(p.dtype)))
        return ScaleByNovoGradState(mu=ma.zeros_in(p, self.mu_dtype), nu=nu)

    def prepare(self, count):
        return count == 0

    def update_leaf(self, now, g, s, p):
        square = jnp.sum(ma.abs_sq(g))
        # The average starts at the first value, as in the paper, and needs no bias correction.
        nu = jnp.where(now, square, ma.moment(self.b2, s.nu, square))
        mu = self.b1 * s.mu + g / (self.eps + ma.safe_sqrt(self.eps_root + nu)) + decayed(self.weight_decay, p)
        return mu, ScaleByNovoGradState(mu=mu, nu=nu)


class NovoGrad(AbstractNovoGrad, ma.AbstractRated):
    r"""Adam with one second moment per array and half the memory: a momentum of layer-wise normalized gradients.

        optimizer = NovoGrad(0.01, b1=0.95, b2=0.98, weight_decay=1e-3)

    $$
    \begin{aligned}
    v_1 &= \|g_1\|^2, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2 \\
    m_t &= \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t, \qquad m_0 = 0 \\
    w_{t+1} &= w_t - \eta\, m_t
    \end{aligned}
    $$

    for each array, with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$. The momentum is a sum, not an average, so
    steps become $1 / (1 - \beta_1)$ times as long as without it.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment. The default is that of optax; the paper's is 0.98.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$; the decay is part of the momentum.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    direction = ScaleByNovoGrad
    eps: ma.Number = ma.number(1e-6)
