"""Adan: Nesterov momentum estimated from the differences of successive gradients."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import (
    abs_sq,
    bias,
    kept,
    moment,
    safe_sqrt,
    second_moment_like,
)
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Follow, Shared


class ScaleByAdanState(AbstractState):
    """State of `ScaleByAdan`: step count, moving averages `m`, `v` and `n`, and the previous updates `g`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("m", "v", "n", "g", "t=count")

    m: PyTree = like_params(moment=1.0)
    v: PyTree = like_params()
    n: PyTree = like_params(nonnegative=True)
    g: PyTree = like_params()
    count: Shared[Count] = counter()


class _AdanNumbers(NamedTuple):
    """Bias corrections, the weight of the gradient difference, and the number of steps before."""

    bias1: Any
    bias2: Any
    bias3: Any
    weight: Any
    count: Any


class ScaleByAdan(AbstractLeafwise[ScaleByAdanState]):
    r"""Nesterov momentum estimated from update differences, over the root of a second moment: the direction of Adan.

    $$
    \begin{aligned}
    d_t &= g_t - g_{t-1}, \qquad d_1 = 0 \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) d_t \\
    n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \gamma d_t|^2 \\
    \hat m_t &= \frac{m_t}{1 - \beta_1^t}, \qquad \hat v_t = \frac{v_t}{1 - \beta_2^t}, \qquad
        \hat n_t = \frac{n_t}{1 - \beta_3^t} \\
    u_t &= \frac{\hat m_t + \gamma \hat v_t}{\sqrt{\hat n_t + \bar\varepsilon} + \varepsilon}
    \end{aligned}
    $$

    The bias corrections are from the authors' code. The paper's coefficients are $1 - \beta$ in this notation, so its
    weight of the difference is $\gamma = \beta_2$. optax takes $\gamma = 1 - \beta_2$, and so does `follow="optax"`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment. The paper's $\beta_1$ is 1 minus this one, and so are
            its $\beta_2$ and $\beta_3$.
        b2: exponential decay rate $\beta_2$ of the average of gradient differences.
        b3: exponential decay rate $\beta_3$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        follow: `"paper"` for $\gamma = \beta_2$, `"optax"` for $\gamma = 1 - \beta_2$.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

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
        return _AdanNumbers(bias(self.b1, t), bias(self.b2, t), bias(self.b3, t), weight, count)

    def update_leaf(self, now, g, s, p):
        del p
        # The zeros of a fresh state are not a previous gradient.
        difference = jnp.where(now.count > 0, g - s.g, 0)
        m = moment(self.b1, s.m, g)
        v = moment(self.b2, s.v, difference)
        n = moment(self.b3, s.n, abs_sq(g + now.weight * difference))
        direction = m / now.bias1 + now.weight * v / now.bias2
        u = direction / (self.eps + safe_sqrt(self.eps_root + n / now.bias3))
        return u, ScaleByAdanState(m=m, v=v, n=n, g=kept(g, s.g, now.count))
