"""ADOPT: Adam that normalizes before it averages."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count
from ..tree._arithmetic import clip_entries


def fourth_root(step: Array) -> Array:
    r"""$t^{1/4}$, the bound of `ScaleByADOPT` at step $t$."""
    return step**0.25


class ScaleByADOPTState(AbstractState):
    """The state of `ScaleByADOPT`: the number of steps done, the mean and the mean square."""

    mu: PyTree
    nu: PyTree
    count: Count | None = counter()


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
