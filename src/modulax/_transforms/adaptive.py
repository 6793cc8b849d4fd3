"""Steps whose length adapts to the size of past gradients: Adam, RMSProp, Lion."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._checks import DECAY, check_choice
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import abs_sq, at_least_float32, bias, moment, real_dtype, safe_sqrt, zeros_in
from .._schedule import Number, number
from .._types import Count


def second_moment_like(p: Array, value: Any = 0) -> Array:
    """An accumulator for squares: real, and at least float32, because bfloat16 cannot hold increments of 1e-3."""
    return jnp.full_like(p, value, at_least_float32(real_dtype(p.dtype)))


class ScaleByAdamState(AbstractState):
    """The state of `ScaleByAdam` and its relatives: the number of steps done, the first and second moments."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class AdamNumbers(NamedTuple):
    """What all leaves share in a step of Adam: the weights of the new update, and the bias corrections."""

    c1: Number
    c2: Number
    bias1: Number
    bias2: Number
    bias1_next: Number


def adam_numbers(b1: Any, b2: Any, count: Any) -> AdamNumbers:
    """Adam's shared numbers after `count` steps, for the next one."""
    t = count + 1
    return AdamNumbers(c1=1 - b1, c2=1 - b2, bias1=bias(b1, t), bias2=bias(b2, t), bias1_next=bias(b1, t + 1))


def corrected_mean(now: AdamNumbers, b1: Any, mu: Array, g: Array, nesterov: bool) -> Array:
    """The mean corrected for its start at zero; with `nesterov`, looking one step ahead."""
    if nesterov:
        return b1 * mu / now.bias1_next + now.c1 * g / now.bias1
    return mu / now.bias1


class ScaleByAdam(AbstractLeafwise):
    r"""Adam's direction: the mean of the updates over the root of their mean square.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    With `nesterov`, Dozat's look-ahead replaces the mean: $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 -
    \beta_1) g_t / (1 - \beta_1^t)$.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the mean square.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's. The mean square is at least float32.
        nesterov: whether to look ahead.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014;
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016.
    """

    cites: ClassVar[tuple[str, ...]] = ("kingma2014",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        nu_hat = nu / now.bias2
        u = mu_hat / (self.eps + safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAdamState(mu=mu, nu=nu)


class ScaleByRMSState(AbstractState):
    """The state of `ScaleByRMS`: the number of steps done and the mean square of the updates."""

    nu: PyTree
    count: Count | None = None


class ScaleByRMS(AbstractLeafwise):
    r"""Divides the updates by the root of their mean square.

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t + \varepsilon} \quad\text{or}\quad g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: the decay $\beta$ of the mean square.
        eps: $\varepsilon$.
        initial_scale: the mean square at the start.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root.
        bias_correction: whether to divide $v_t$ by $1 - \beta^t$, against a start at zero.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012.
    """

    cites: ClassVar[tuple[str, ...]] = ("tieleman2012",)

    decay: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-8)
    initial_scale: Number = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    bias_correction: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        return ScaleByRMSState(nu=second_moment_like(p, self.initial_scale))

    def prepare(self, count):
        return bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        nu = moment(self.decay, s.nu, abs_sq(g))
        nu_hat = nu / now if self.bias_correction else nu
        u = g / root_with_eps(nu_hat, self.eps, self.eps_in_sqrt)
        return u, ScaleByRMSState(nu=nu)


class ScaleByStddevState(AbstractState):
    """The state of `ScaleByStddev`: the number of steps done, the mean and the mean square of the updates."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class ScaleByStddev(AbstractLeafwise):
    r"""Divides the updates by their running standard deviation: the centred variant of `ScaleByRMS`.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t - |m_t|^2 + \varepsilon}
        \quad\text{or}\quad g_t / (\sqrt{v_t - |m_t|^2} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: the decay $\beta$ of both means.
        eps: $\varepsilon$.
        initial_scale: the mean square at the start.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root.
        bias_correction: whether to divide both means by $1 - \beta^t$, against a start at zero.

    References:
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    cites: ClassVar[tuple[str, ...]] = ("graves2013",)

    decay: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-8)
    initial_scale: Number = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    bias_correction: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        dtype = at_least_float32(p.dtype)
        return ScaleByStddevState(mu=jnp.zeros_like(p, dtype), nu=second_moment_like(p, self.initial_scale))

    def prepare(self, count):
        return bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.decay, s.mu, g)
        nu = moment(self.decay, s.nu, abs_sq(g))
        mu_hat, nu_hat = (mu / now, nu / now) if self.bias_correction else (mu, nu)
        # A variance is not negative; the difference of two rounded numbers may be.
        variance = jnp.maximum(nu_hat - abs_sq(mu_hat), 0)
        u = g / root_with_eps(variance, self.eps, self.eps_in_sqrt)
        return u, ScaleByStddevState(mu=mu, nu=nu)


class ScaleByLionState(AbstractState):
    """The state of `ScaleByLion`: the number of steps done and the momentum."""

    mu: PyTree
    count: Count | None = None


class ScaleByLion(AbstractLeafwise):
    r"""Lion's direction: the sign of an interpolation between momentum and update.

    $$
    \begin{aligned}
    c_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    m_t &= \beta_2 m_{t-1} + (1 - \beta_2) g_t \\
    u_t &= \operatorname{sign}(c_t)
    \end{aligned}
    $$

    The sign jumps at zero. Two continuous functions may stand in its place: $u_t = \tanh(\kappa c_t)$ (`"smooth"`), and
    $u_t = c_t / \max(1, |c_t|)$ (`"refined"`), the identity up to 1 and the sign beyond. Of a complex number the sign
    is $c / |c|$, and the functions act on the absolute value.

    Args:
        b1: the weight $\beta_1$ of the momentum in the direction.
        b2: the decay $\beta_2$ of the momentum.
        mu_dtype: the dtype of the momentum; by default the parameter's.
        mode: `"hard"` for the sign, `"smooth"` or `"refined"`.
        smooth_beta: the slope $\kappa$ at zero of the smooth sign.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("chen2023",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    mode: Literal["hard", "smooth", "refined"] = eqx.field(static=True, default="hard")
    smooth_beta: Number = number(1.0)

    def __check_init__(self) -> None:
        check_choice(self, "mode", ("hard", "smooth", "refined"))

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
            return jnp.tanh(self.smooth_beta * jnp.abs(c)) * jnp.sign(c)
        return jnp.tanh(self.smooth_beta * c)


def root_with_eps(x: Array, eps: Any, inside: bool) -> Array:
    """The root of `x + eps`, or the root of `x`, plus `eps`."""
    return safe_sqrt(eps + x) if inside else eps + safe_sqrt(x)
