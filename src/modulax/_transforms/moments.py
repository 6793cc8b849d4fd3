"""Relatives of Adam, which keep a mean and a second moment: Adamax, AMSGrad, AdaBelief, Yogi, RAdam."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._checks import DECAY, NON_NEGATIVE
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import abs_sq, bias, infinity_moment, moment, safe_sqrt, zeros_in
from .._schedule import Number, followed, number
from .._types import Count, Follow
from .adaptive import AdamNumbers, ScaleByAdamState, adam_numbers, corrected_mean, second_moment_like


class ScaleByAdamax(AbstractLeafwise):
    r"""Adamax's direction: the mean of the updates over the decayed maximum of their absolute values.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \max(\beta_2 v_{t-1}, |g_t| + \varepsilon) \\
    u_t &= m_t / ((1 - \beta_1^t)\, v_t)
    \end{aligned}
    $$

    It is Adam with the maximum norm in place of the root mean square. The paper has no $\varepsilon$; it keeps the
    maximum above zero where all updates are zero.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the maximum.
        eps: $\varepsilon$.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
    """

    cites: ClassVar[tuple[str, ...]] = ("kingma2014",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b1, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g)
        nu = infinity_moment(self.b2, s.nu, g, self.eps)
        u = mu / now / nu
        return u, ScaleByAdamState(mu=mu, nu=nu)


class ScaleByAMSGradState(AbstractState):
    """The state of `ScaleByAMSGrad`: the steps done, mean and mean square of the updates, the largest mean square."""

    mu: PyTree
    nu: PyTree
    nu_max: PyTree
    count: Count | None = None


class ScaleByAMSGrad(AbstractLeafwise):
    r"""AMSGrad's direction: Adam's, with the largest mean square so far in place of the last.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \bar v_t &= \max(\bar v_{t-1}, v_t), \qquad \hat v_t = \bar v_t / (1 - \beta_2^t) \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    Without its bias correction, $\hat v_t = \bar v_t$, and the numerator is $m_t$. Three forms are in use:

    * the paper's: `bias_correction_mu=False, bias_correction_nu=False`;
    * that of torch and Keras, the default: the maximum is taken of $v_t$, and corrected behind it;
    * optax's, `follow="optax"`: each $v_t$ is corrected before the maximum, $\bar v_t = \max(\bar v_{t-1}, v_t / (1 -
      \beta_2^t))$ and $\hat v_t = \bar v_t$. A large first update then counts in full for ever, for $v_1$ is multiplied
      by $1 / (1 - \beta_2)$. Without the correction of $v$ it is the same as the others.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the mean square.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's. The mean square is at least float32.
        bias_correction_mu: whether the mean is corrected for its start at zero.
        bias_correction_nu: whether the mean square is.
        follow: `"paper"`: the maximum of the mean square as it is; `"optax"`: of the corrected one.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    cites: ClassVar[tuple[str, ...]] = ("reddi2018",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = eqx.field(static=True, default=True)
    bias_correction_nu: bool = eqx.field(static=True, default=True)
    follow: Follow = followed()

    def init_leaf(self, p):
        return ScaleByAMSGradState(
            mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p), nu_max=second_moment_like(p)
        )

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.c2)
        bias1 = now.bias1 if self.bias_correction_mu else 1
        bias2 = now.bias2 if self.bias_correction_nu else 1
        if self.follow == "optax":
            nu_max = nu_hat = jnp.maximum(s.nu_max, nu / bias2)
        else:
            nu_max = jnp.maximum(s.nu_max, nu)
            nu_hat = nu_max / bias2
        u = mu / bias1 / (self.eps + safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAMSGradState(mu=mu, nu=nu, nu_max=nu_max)


class ScaleByBeliefState(AbstractState):
    """The state of `ScaleByBelief`: the steps done, the mean of the updates, and how far they are from it."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class ScaleByBelief(AbstractLeafwise):
    r"""AdaBelief's direction: the mean of the updates over their typical distance from it.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{s_t / (1 - \beta_2^t)} + \varepsilon}
    \end{aligned}
    $$

    Steps are long where the updates are as expected. $\bar\varepsilon$ is added to the state at every step, so that in
    the long run $\bar\varepsilon / (1 - \beta_2)$ stands under the root. With `nesterov`, the mean looks ahead as in
    `ScaleByAdam`.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the squared distance.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, accumulated inside the root.
        nesterov: whether to look ahead.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    cites: ClassVar[tuple[str, ...]] = ("zhuang2020",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-16)
    eps_root: Number = number(1e-16)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def init_leaf(self, p):
        return ScaleByBeliefState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(g - mu), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        u = mu_hat / (self.eps + safe_sqrt(nu / now.bias2))
        return u, ScaleByBeliefState(mu=mu, nu=nu)


class ScaleByYogi(AbstractLeafwise):
    r"""Yogi's direction: Adam's, with a second moment that changes by steps of the size of the new square.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= v_{t-1} - (1 - \beta_2) \operatorname{sign}(v_{t-1} - |g_t|^2)\, |g_t|^2 \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t) + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    Where Adam's moment is much larger than the new square it decays as fast as $\beta_2^t$ does; Yogi's decays slowly,
    so the steps do not grow in a hurry. The paper's algorithm 2 has no bias correction.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: $\beta_2$, by which the second moment changes.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        initial_accumulator_value: where $m$ and $v$ start.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018.
    """

    cites: ClassVar[tuple[str, ...]] = ("zaheer2018",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-3)
    eps_root: Number = number(0.0)
    initial_accumulator_value: Number = number(1e-6, needs=NON_NEGATIVE)

    def init_leaf(self, p):
        start = self.initial_accumulator_value
        return ScaleByAdamState(mu=jnp.full_like(p, start), nu=second_moment_like(p, start))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        square = abs_sq(g)
        change = now.c2 * square
        # The cases of the sign, so that a square and a moment that overflowed do not meet in a difference.
        nu = jnp.where(square > s.nu, s.nu + change, jnp.where(square < s.nu, s.nu - change, s.nu))
        u = mu / now.bias1 / (self.eps + safe_sqrt(self.eps_root + nu / now.bias2))
        return u, ScaleByAdamState(mu=mu, nu=nu)


class _RAdamNumbers(NamedTuple):
    """Adam's numbers, whether the variance of its step is known by now, and by what the step is shortened."""

    adam: AdamNumbers
    is_rectified: Array
    factor: Array


class ScaleByRAdam(AbstractLeafwise):
    r"""RAdam's direction: Adam's, shortened while its mean square rests on few updates.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
    \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
    r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\, \rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\, \rho_t}} \\
    u_t &= r_t \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \quad\text{where } \rho_t \ge \theta \text{ and } \rho_t > 4, \text{ else}\quad \hat m_t
    \end{aligned}
    $$

    Without a known variance, which at $\beta_2 = 0.999$ are the first five steps, the direction is the plain mean. The
    paper has $\varepsilon = 0$ and asks for $\rho_t > 4$ alone; its authors' code has the threshold of 5. In $\rho_t$
    two numbers near $\rho_\infty$ cancel, so it is computed in another, equal form. With `nesterov`, the mean looks
    ahead as in `ScaleByAdam`.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the mean square.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        threshold: $\theta$, from which length of the average on the variance counts as known.
        nesterov: whether to look ahead.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    cites: ClassVar[tuple[str, ...]] = ("liu2019",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    threshold: Number = number(5.0)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        rho, rho_inf = _length_of_average(self.b2, count + 1)
        is_rectified = (rho >= self.threshold) & (rho > 4)
        rho, rho_inf = (jnp.where(is_rectified, x, 5) for x in (rho, rho_inf))
        factor = jnp.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
        return _RAdamNumbers(adam_numbers(self.b1, self.b2, count), is_rectified, factor)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.adam.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.adam.c2)
        mu_hat = corrected_mean(now.adam, self.b1, mu, g, self.nesterov)
        rectified = now.factor * mu_hat / (self.eps + safe_sqrt(self.eps_root + nu / now.adam.bias2))
        u = jnp.where(now.is_rectified, rectified, mu_hat)
        return u, ScaleByAdamState(mu=mu, nu=nu)


def _length_of_average(b2: Any, t: Any) -> tuple[Array, Array]:
    r"""RAdam's $\rho_t$ and $\rho_\infty$.

    With $\beta_2 = e^{-a}$ and $M(z) = 1 - \coth z + 1/z$ they are $1 - M(a/2) + t M(at/2)$ and $\coth(a/2)$.
    """
    half = -jnp.log1p(b2 - 1) / 2
    return 1 - _m(half) + t * _m(half * t), 1 / jnp.tanh(half)


def _m(z: Array) -> Array:
    r"""$M(z)$ for $z > 0$, by its series where $\coth z$ and $1/z$ would cancel."""
    is_small = z < 0.1
    x = jnp.where(is_small, z, 0.1)
    series = 1 - x / 3 + x**3 / 45 - 2 * x**5 / 945 + x**7 / 4725 - 2 * x**9 / 93555
    z = jnp.where(is_small, 0.1, z)
    return jnp.where(is_small, series, 1 / z + 2 * jnp.exp(-2 * z) / jnp.expm1(-2 * z))
