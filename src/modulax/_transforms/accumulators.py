"""Steps that are scaled by sums of squares, by norms, or by what the updates were before."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._checks import DECAY, NON_NEGATIVE
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import abs_sq, at_least_float32, bias, moment, real_dtype, safe_sqrt, zeros_in
from .._schedule import Number, followed, number
from .._types import Count, Follow
from .adaptive import second_moment_like


class ScaleByRSSState(AbstractState):
    """The state of `ScaleByRSS`: the sum of the squares of all updates."""

    sum_of_squares: PyTree


class ScaleByRSS(AbstractLeafwise):
    r"""AdaGrad's direction: divides the updates by the root of the sum of their squares.

    $$
    s_t = s_{t-1} + |g_t|^2, \qquad u_t = g_t / \sqrt{s_t + \varepsilon}
    $$

    The update is zero where the root is. The paper adds a constant to the root; here a start above zero and
    $\varepsilon$ bound the first steps.

    Args:
        initial_accumulator_value: the sum at the start, $s_0$.
        eps: $\varepsilon$, added inside the root.

    References:
        Duchi, Hazan and Singer, [Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization](https://jmlr.org/papers/v12/duchi11a.html), 2011.
    """

    cites: ClassVar[tuple[str, ...]] = ("duchi2011",)

    initial_accumulator_value: Number = number(0.1, needs=NON_NEGATIVE)
    eps: Number = number(1e-7)

    def init_leaf(self, p):
        return ScaleByRSSState(sum_of_squares=second_moment_like(p, self.initial_accumulator_value))

    def update_leaf(self, now, g, s, p):
        del now, p
        total = s.sum_of_squares + abs_sq(g)
        root = safe_sqrt(self.eps + total)
        u = jnp.where(root > 0, g / jnp.where(root > 0, root, 1), 0)
        return u, ScaleByRSSState(sum_of_squares=total)


class ScaleByAdadeltaState(AbstractState):
    """The state of `ScaleByAdadelta`: the mean squares of what came in and of what went out."""

    e_g: PyTree
    e_x: PyTree


class ScaleByAdadelta(AbstractLeafwise):
    r"""Adadelta's direction: the updates in the units of the parameters, for use with a learning rate of 1.

    $$
    \begin{aligned}
    E_t &= \rho E_{t-1} + (1 - \rho) |g_t|^2 \\
    u_t &= \frac{\sqrt{X_{t-1} + \varepsilon}}{\sqrt{E_t + \varepsilon}}\, g_t \\
    X_t &= \rho X_{t-1} + (1 - \rho) |u_t|^2
    \end{aligned}
    $$

    Args:
        rho: the decay $\rho$ of both mean squares.
        eps: $\varepsilon$, which also sets the length of the first steps.

    References:
        Zeiler, [ADADELTA: An Adaptive Learning Rate Method](https://arxiv.org/abs/1212.5701), 2012.
    """

    cites: ClassVar[tuple[str, ...]] = ("zeiler2012",)

    rho: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-6)

    def init_leaf(self, p):
        return ScaleByAdadeltaState(e_g=second_moment_like(p), e_x=second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        e_g = moment(self.rho, s.e_g, abs_sq(g))
        u = safe_sqrt(self.eps + s.e_x) / safe_sqrt(self.eps + e_g) * g
        e_x = moment(self.rho, s.e_x, abs_sq(u))
        return u, ScaleByAdadeltaState(e_g=e_g, e_x=e_x)


class ScaleByNovoGradState(AbstractState):
    """The state of `ScaleByNovoGrad`: the steps done, the momentum, and for each array its mean squared norm."""

    mu: PyTree
    nu: PyTree
    count: Count | None = None


class ScaleByNovoGrad(AbstractLeafwise):
    r"""NovoGrad's direction: the momentum of updates that are divided, array by array, by their typical norm.

    $$
    \begin{aligned}
    v_1 &= \|g_1\|^2, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2 \\
    m_t &= \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t, \qquad m_0 = 0 \\
    u_t &= m_t
    \end{aligned}
    $$

    There is one number $v$ for each array. The weight decay is part of the momentum. The momentum is a sum, not an
    average, so the steady step is $1 / (1 - \beta_1)$ times as long as a single one. The default of $\beta_2$ is
    optax's; the paper's is 0.98.

    Args:
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay $\beta_2$ of the squared norm.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        weight_decay: the rate $\lambda$.
        mu_dtype: the dtype of the momentum; by default the parameter's.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    needs_params: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("ginsburg2019",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.25, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    weight_decay: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        nu = jnp.zeros((), at_least_float32(real_dtype(p.dtype)))
        return ScaleByNovoGradState(mu=zeros_in(p, self.mu_dtype), nu=nu)

    def prepare(self, count):
        return count == 0

    def update_leaf(self, now, g, s, p):
        square = jnp.sum(abs_sq(g))
        nu = jnp.where(now, square, moment(self.b2, s.nu, square))
        mu = self.b1 * s.mu + g / (self.eps + safe_sqrt(self.eps_root + nu)) + self.weight_decay * p
        return mu, ScaleByNovoGradState(mu=mu, nu=nu)


class ScaleByAdanState(AbstractState):
    """The state of `ScaleByAdan`: the steps done, three averages, and the last updates."""

    m: PyTree
    v: PyTree
    n: PyTree
    g: PyTree
    count: Count | None = None


class _AdanNumbers(NamedTuple):
    """The bias corrections, the weight of the difference, and whether there is an update before this one."""

    bias1: Any
    bias2: Any
    bias3: Any
    weight: Any
    has_last: Array


class ScaleByAdan(AbstractLeafwise):
    r"""Adan's direction: a mean of the updates and one of their differences, over the root mean square of the sum.

    $$
    \begin{aligned}
    d_t &= g_t - g_{t-1}, \qquad d_1 = 0 \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) d_t \\
    n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \gamma d_t|^2 \\
    u_t &= \frac{\hat m_t + \gamma \hat v_t}{\sqrt{\hat n_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    The hats are bias corrections: $\hat m_t = m_t / (1 - \beta_1^t)$, and so on, as in the authors' code. The
    difference has the weight $\gamma = \beta_2$. optax gives it $\gamma = 1 - \beta_2$, because the paper writes
    $1 - \beta$ for what is called $\beta$ here; `follow="optax"` does the same.

    Args:
        b1: the decay $\beta_1$ of the mean; $1 - \beta_1$ in the paper, and likewise the others.
        b2: the decay $\beta_2$ of the mean of the differences.
        b3: the decay $\beta_3$ of the mean square.
        eps: $\varepsilon$, added outside the root.
        eps_root: $\bar\varepsilon$, added inside the root.
        follow: `"paper"` for $\gamma = \beta_2$, `"optax"` for $\gamma = 1 - \beta_2$.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    cites: ClassVar[tuple[str, ...]] = ("xie2022",)

    b1: Number = number(0.98, needs=DECAY)
    b2: Number = number(0.92, needs=DECAY)
    b3: Number = number(0.99, needs=DECAY)
    eps: Number = number(1e-8)
    eps_root: Number = number(0.0)
    follow: Follow = followed()

    def init_leaf(self, p):
        return ScaleByAdanState(m=jnp.zeros_like(p), v=jnp.zeros_like(p), n=second_moment_like(p), g=jnp.zeros_like(p))

    def prepare(self, count):
        t = count + 1
        weight = self.b2 if self.follow == "paper" else 1 - self.b2
        return _AdanNumbers(bias(self.b1, t), bias(self.b2, t), bias(self.b3, t), weight, count > 0)

    def update_leaf(self, now, g, s, p):
        del p
        difference = jnp.where(now.has_last, g - s.g, 0)
        m = moment(self.b1, s.m, g)
        v = moment(self.b2, s.v, difference)
        n = moment(self.b3, s.n, abs_sq(g + now.weight * difference))
        direction = m / now.bias1 + now.weight * v / now.bias2
        u = direction / (self.eps + safe_sqrt(self.eps_root + n / now.bias3))
        return u, ScaleByAdanState(m=m, v=v, n=n, g=g)


class ScaleByOptimisticGradientState(AbstractState):
    """The state of `ScaleByOptimisticGradient`: the number of steps done, and the last updates."""

    previous_gradient: PyTree
    count: Count | None = None


class ScaleByOptimisticGradient(AbstractLeafwise):
    r"""The update, moved on by how it changed since the last: an extrapolation to the next one.

    $$
    u_t = \alpha g_t + \beta (g_t - g_{t-1}), \qquad g_0 = g_1
    $$

    In a game, where each player's loss depends on the others, it settles where plain descent goes in circles.

    Args:
        alpha: the weight $\alpha$ of the update.
        beta: the weight $\beta$ of its change.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    cites: ClassVar[tuple[str, ...]] = ("mokhtari2019",)

    alpha: Number = number(1.0)
    beta: Number = number(1.0)

    def init_leaf(self, p):
        return ScaleByOptimisticGradientState(previous_gradient=jnp.zeros_like(p))

    def prepare(self, count):
        return count > 0

    def update_leaf(self, now, g, s, p):
        del p
        change = jnp.where(now, g - s.previous_gradient, 0)
        u = self.alpha * g + self.beta * change
        return u, ScaleByOptimisticGradientState(previous_gradient=g)
