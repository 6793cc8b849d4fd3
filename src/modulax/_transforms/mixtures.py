"""Adaptive steps of another make: ADOPT, AdEMAMix, ACProp, MADGRAD."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._checks import DECAY
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import abs_sq, at_least_float32, bias, moment, safe_sqrt, zeros_in
from .._schedule import Number, followed, number
from .._types import Count, Follow
from ..tree._arithmetic import clip_entries
from .adaptive import second_moment_like


def fourth_root(step: Array) -> Array:
    r"""$t^{1/4}$, the bound of `ScaleByADOPT` at step $t$."""
    return step**0.25


class ScaleByADOPTState(AbstractState):
    """The state of `ScaleByADOPT`: the number of steps done, the mean and the mean square."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class ADOPTNumbers(NamedTuple):
    """What all leaves share in a step of ADOPT: whether it is the first one, and the bound."""

    is_first: Any
    bound: Any


class ScaleByADOPT(AbstractLeafwise):
    r"""ADOPT's direction: the mean of updates, each divided by the root of the mean square of those before it.

    $$
    \begin{aligned}
    v_0 &= |g_0|^2, \qquad m_0 = 0 \\
    c_t &= \operatorname{clip}(g_t / \max(\sqrt{v_{t-1}}, \varepsilon),\; b(t)) \\
    u_t = m_t &= \beta_1 m_{t-1} + (1 - \beta_1) c_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2
    \end{aligned}
    $$

    The first step, $t = 0$, only fills $v_0$: its update is zero. With `nesterov`, $u_t = \beta_1 m_t + (1 - \beta_1)
    c_t$. Of a complex entry the real and the imaginary part are clipped, each by itself.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the mean square; any value will do.
        eps: the smallest denominator $\varepsilon$.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether to look ahead.
        use_clipping: whether to clip, which the paper recommends.
        clip_value_fn: the bound $b$, a function of the step.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024, algorithm 2.
    """

    cites: ClassVar[tuple[str, ...]] = ("taniguchi2024",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.9999, needs=DECAY)
    eps: Number = number(1e-6)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)
    use_clipping: bool = eqx.field(static=True, default=True, kw_only=True)
    clip_value_fn: Callable[[Array], Array] = eqx.field(static=True, default=fourth_root, kw_only=True)

    def init_leaf(self, p):
        return ScaleByADOPTState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return ADOPTNumbers(is_first=count == 0, bound=self.clip_value_fn(count) if self.use_clipping else None)

    def update_leaf(self, now, g, s, p):
        del p
        c = g / jnp.maximum(safe_sqrt(s.nu), self.eps)
        c = clip_entries(c, -now.bound, now.bound) if self.use_clipping else c
        c = jnp.where(now.is_first, 0, c)
        mu = moment(self.b1, s.mu, c)
        nu = jnp.where(now.is_first, abs_sq(g), moment(self.b2, s.nu, abs_sq(g)))
        u = moment(self.b1, mu, c) if self.nesterov else mu
        return u, ScaleByADOPTState(mu=mu, nu=nu)


class ScaleByAdEMAMixState(AbstractState):
    """The state of `ScaleByAdEMAMix`: the number of steps done, the fast and the slow mean, and the mean square."""

    m1: PyTree
    m2: PyTree
    nu: PyTree
    count: Count | None = None


class ScaleByAdEMAMix(AbstractLeafwise):
    r"""AdEMAMix's direction: Adam's, with a second mean that remembers much longer.

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (\hat m_{1,t} + \alpha m_{2,t}) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The slow mean is not corrected for its start at zero: it shall grow slowly. The paper raises $\alpha$ and
    $\beta_3$ by schedules, which here may stand in their fields; the first step takes them at 0.

    Args:
        b1: the decay $\beta_1$ of the fast mean.
        b2: the decay $\beta_2$ of the mean square.
        b3: the decay $\beta_3$ of the slow mean.
        alpha: the weight $\alpha$ of the slow mean.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        mu_dtype: the dtype of both means; by default the parameter's. The mean square is at least float32.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    cites: ClassVar[tuple[str, ...]] = ("pagliardini2024",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    b3: Number = number(0.9999, needs=DECAY)
    alpha: Number = number(6.0)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        m1, m2 = (zeros_in(p, self.mu_dtype) for _ in range(2))
        return ScaleByAdEMAMixState(m1=m1, m2=m2, nu=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b1, count + 1), bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        bias1, bias2 = now
        m1 = moment(self.b1, s.m1, g)
        m2 = moment(self.b3, s.m2, g)
        nu = moment(self.b2, s.nu, abs_sq(g))
        u = (m1 / bias1 + self.alpha * m2) / (self.eps + safe_sqrt(self.eps_root + nu / bias2))
        return u, ScaleByAdEMAMixState(m1=m1, m2=m2, nu=nu)


class ScaleBySimplifiedAdEMAMixState(AbstractState):
    """The state of `ScaleBySimplifiedAdEMAMix`: the number of steps done, the momentum and the mean square."""

    m: PyTree
    n: PyTree
    count: Count | None = None


class ScaleBySimplifiedAdEMAMix(AbstractLeafwise):
    r"""AdEMAMix with one momentum instead of two means.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= (m_t + \alpha g_t) / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    The momentum is a sum, not a mean, so the learning rate must be about $1 - \beta_1$ times that of Adam.

    Args:
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay $\beta_2$ of the mean square.
        alpha: the weight $\alpha$ of the newest update.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    cites: ClassVar[tuple[str, ...]] = ("morwani2025",)

    b1: Number = number(0.99, needs=DECAY)
    b2: Number = number(0.95, needs=DECAY)
    alpha: Number = number(0.0)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)

    def init_leaf(self, p):
        return ScaleBySimplifiedAdEMAMixState(m=jnp.zeros_like(p), n=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b2, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        m = self.b1 * s.m + g
        n = moment(self.b2, s.n, abs_sq(g))
        u = (self.alpha * g + m) / (self.eps + safe_sqrt(self.eps_root + n / now))
        return u, ScaleBySimplifiedAdEMAMixState(m=m, n=n)


class ScaleByACPropState(AbstractState):
    """The state of `ScaleByACProp`: the number of steps done, the mean, and the variance about it."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class ScaleByACProp(AbstractLeafwise):
    r"""ACProp's direction: the update over the standard deviation of those before it.

    $$
    \begin{aligned}
    u_t &= g_t / (\sqrt{\hat s_{t-1}} + \varepsilon), \qquad \hat s_{t-1} = s_{t-1} / (1 - \beta_2^{t-1}) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    s_t &= \beta_2 s_{t-1} + (1 - \beta_2) |g_t - m_t|^2 + \bar\varepsilon
    \end{aligned}
    $$

    The denominator knows nothing of the update that it divides. In the first step $\hat s_0 = 1$.

    An entry whose updates were all alike, such as that of a unit that was dead so far, has next to no variance, and the
    first other update makes a step of millions. Models with such units need an $\varepsilon$ of 1e-4 or so; the default
    is the authors' and optax's.

    Args:
        b1: the decay $\beta_1$ of the mean.
        b2: the decay $\beta_2$ of the variance.
        eps: $\varepsilon$, added to the standard deviation.
        eps_root: $\bar\varepsilon$, added to the variance in every step.
        follow: `"paper"` measures the deviation from the new mean $m_t$, `"optax"` that from the old one, $m_{t-1}$,
            which makes it $1 / \beta_1$ times as large and the steps as much shorter.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021, and its [code](https://github.com/juntang-zhuang/ACProp-Optimizer).
    """

    cites: ClassVar[tuple[str, ...]] = ("zhuang2021",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-16)
    eps_root: Number = number(1e-16)
    follow: Follow = followed()

    def init_leaf(self, p):
        return ScaleByACPropState(mu=jnp.zeros_like(p), nu=second_moment_like(p))

    def prepare(self, count):
        return count == 0, bias(self.b2, jnp.maximum(count, 1))

    def update_leaf(self, now, g, s, p):
        del p
        is_first, bias2 = now
        u = g / (self.eps + jnp.where(is_first, 1, safe_sqrt(s.nu / bias2)))
        mu = moment(self.b1, s.mu, g)
        deviation = g - (mu if self.follow == "paper" else s.mu)
        nu = self.eps_root + moment(self.b2, s.nu, abs_sq(deviation))
        return u, ScaleByACPropState(mu=mu, nu=nu)


class ScaleByMADGRADState(AbstractState):
    """The state of `ScaleByMADGRAD`: the steps done, the sums of squares and of updates, and the first point."""

    grad_sum_sq: PyTree
    s: PyTree
    x0: PyTree
    count: Count | None = None


class ScaleByMADGRAD(AbstractLeafwise):
    r"""MADGRAD's step: towards the first point minus the weighted sum of all gradients, scaled in each coordinate.

    $$
    \begin{aligned}
    \lambda_k &= (\eta + \varepsilon) \sqrt{k + 1} \\
    s_{k+1} &= s_k + \lambda_k g_k, \qquad v_{k+1} = v_k + \lambda_k |g_k|^2 \\
    z_{k+1} &= w_0 - s_{k+1} / (\sqrt[3]{v_{k+1}} + \varepsilon) \\
    u_k &= (1 - \mu) (z_{k+1} - w_k)
    \end{aligned}
    $$

    The update is the whole step, learning rate and sign included; that $\varepsilon$ is added to the rate is from the
    authors' code. The sums and the first point are not decayed, so a change of the rate acts on new gradients alone.

    Args:
        learning_rate: $\eta$.
        momentum: $\mu$; the paper's $c$ is $1 - \mu$.
        eps: $\varepsilon$.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021, and its
        [code](https://github.com/facebookresearch/madgrad).
    """

    needs_params: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("defazio2021",)

    learning_rate: Number = number()
    momentum: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-6)

    def init_leaf(self, p):
        s = jnp.zeros_like(p, at_least_float32(p.dtype))
        return ScaleByMADGRADState(grad_sum_sq=second_moment_like(p), s=s, x0=jnp.array(p, copy=True))

    def prepare(self, count):
        return (self.eps + self.learning_rate) * jnp.sqrt(count + 1)

    def update_leaf(self, now, g, s, p):
        total = now * g + s.s
        squares = now * abs_sq(g) + s.grad_sum_sq
        z = s.x0 - total / (self.eps + _cube_root(squares))
        return (1 - self.momentum) * (z - p), ScaleByMADGRADState(grad_sum_sq=squares, s=total, x0=s.x0)


def _cube_root(x: Array) -> Array:
    """The cube root of what is not negative, with a derivative of zero at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.cbrt(jnp.where(positive, x, 1)), 0)
