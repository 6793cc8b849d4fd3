"""RAdam: Adam with a rectified adaptive step size."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import authoring as ma
from .adam import AdamNumbers, ScaleByAdamState, adam_numbers, corrected_mean


class _RAdamNumbers(NamedTuple):
    """Adam's shared numbers, whether the variance of the step is tractable yet, and the rectification factor."""

    adam: AdamNumbers
    is_rectified: ma.Array
    factor: ma.Array


class AbstractRAdam(ma.AbstractMoments):
    r"""The hyperparameters of RAdam.

    Args:
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        threshold: $\theta$, smallest length $\rho_t$ of the average for which the step is adaptive.
    """

    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    threshold: ma.Number = ma.number(5.0)


class ScaleByRAdam(ma.AbstractNesterov, AbstractRAdam, ma.AbstractLeafwise[ScaleByAdamState]):
    r"""Adam's direction, rectified for the variance of its step size in the first steps: the direction of RAdam.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
    \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
    r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\, \rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\, \rho_t}} \\
    u_t &= r_t \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \quad\text{if } \rho_t \ge \theta \text{ and } \rho_t > 4, \text{ otherwise}\quad \hat m_t
    \end{aligned}
    $$

    As long as the variance is intractable, for $\beta_2 = 0.999$ in the first five steps, the direction is the first
    moment. The paper has $\varepsilon = 0$ and requires only $\rho_t > 4$; the code of its authors has the threshold 5.
    With `nesterov`, $\hat m_t$ is that of `ScaleByAdam(nesterov=True)`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        threshold: $\theta$, smallest length $\rho_t$ of the average for which the step is adaptive.
        nesterov: whether to use Nesterov momentum.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    def init_leaf(self, p):
        return ScaleByAdamState(mu=jnp.zeros_like(p), nu=ma.second_moment_like(p))

    def prepare(self, count):
        return _RAdamNumbers(adam_numbers(self.b1, self.b2, count), *rectification(self.b2, count + 1, self.threshold))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.adam.c1)
        nu = ma.moment(self.b2, s.nu, ma.abs_sq(g), now.adam.c2)
        mu_hat = corrected_mean(now.adam, self.b1, mu, g, self.nesterov)
        rectified = now.factor * mu_hat / (self.eps + ma.safe_sqrt(self.eps_root + nu / now.adam.bias2))
        u = jnp.where(now.is_rectified, rectified, mu_hat)
        return u, ScaleByAdamState(mu=mu, nu=nu)


def rectification(b2: Any, t: Any, threshold: Any) -> tuple[ma.Array, ma.Array]:
    r"""Return whether the average of $t$ squares is long enough, $\rho_t \ge \theta$, and the factor $r_t$ of RAdam."""
    rho, rho_inf = _length_of_average(b2, t)
    # Below 4, the radicand is negative, also with a smaller threshold.
    is_rectified = (rho >= threshold) & (rho > 4)
    # Both branches of the step are computed. At 5, the radicand is positive and its derivative finite.
    rho, rho_inf = (jnp.where(is_rectified, x, 5) for x in (rho, rho_inf))
    return is_rectified, jnp.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


def _length_of_average(b2: Any, t: Any) -> tuple[ma.Array, ma.Array]:
    r"""RAdam's $\rho_t$ and $\rho_\infty$, in a form without cancellation.

    With $\beta_2 = e^{-a}$ and $M(z) = 1 - \coth z + 1/z$ they are $1 - M(a/2) + t M(at/2)$ and $\coth(a/2)$. The
    textbook form subtracts two numbers close to $\rho_\infty$.
    """
    half = -jnp.log1p(b2 - 1) / 2
    return 1 - _m(half) + t * _m(half * t), 1 / jnp.tanh(half)


def _m(z: ma.Array) -> ma.Array:
    r"""$M(z)$ for $z > 0$; by its series for small $z$, where $\coth z$ and $1/z$ would cancel."""
    is_small = z < 0.1
    x = jnp.where(is_small, z, 0.1)
    series = 1 - x / 3 + x**3 / 45 - 2 * x**5 / 945 + x**7 / 4725 - 2 * x**9 / 93555
    z = jnp.where(is_small, 0.1, z)
    return jnp.where(is_small, series, 1 / z + 2 * jnp.exp(-2 * z) / jnp.expm1(-2 * z))


class RAdam(ma.AbstractNesterov, AbstractRAdam, ma.AbstractRated):
    r"""Adam with an automatic learning rate warm-up: rectifies the variance of its first steps.

        optimizer = RAdam(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
    \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
    r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\, \rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\, \rho_t}} \\
    u_t &= r_t \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \quad\text{if } \rho_t \ge \theta \text{ and } \rho_t > 4, \text{ otherwise}\quad \hat m_t \\
    w_{t+1} &= w_t - \eta u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. With `nesterov`,
    $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        threshold: $\theta$, smallest length $\rho_t$ of the average for which the step is adaptive.
        nesterov: whether to use Nesterov momentum.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    direction = ScaleByRAdam
