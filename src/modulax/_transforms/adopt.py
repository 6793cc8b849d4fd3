"""ADOPT: Adam that normalizes the gradient before it enters the momentum."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.masks import as_labels
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.placement import typed_like
from .._support.tracing import call_user
from .._support.types import Count, Shared
from ..tree._arithmetic import clip_entries
from .regularization import AbstractDecayingRule, split_decay


def fourth_root(step: Array) -> Array:
    """$t^{1/4}$, the default clipping bound of `ScaleByADOPT` at step $t$."""
    return step**0.25


class ScaleByADOPTState(AbstractState):
    """State of `ScaleByADOPT`: step count, first moment `mu` of normalized updates, second moment `nu`."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu")

    mu: PyTree
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ADOPTNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of ADOPT: whether it is the first, and the clipping bound."""

    is_first: Any
    bound: Any


class ScaleByADOPT(AbstractDecayingRule[ScaleByADOPTState]):
    r"""Averages updates after dividing each by the root of the previous second moment: the direction of ADOPT.

    $$
    \begin{aligned}
    v_0 &= |g_0|^2, \qquad m_0 = 0, \qquad u_0 = 0 \\
    c_t &= \operatorname{clip}(g_t / \max(\sqrt{v_{t-1}}, \varepsilon),\; \pm b(t)) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) c_t, \qquad u_t = m_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2
    \end{aligned}
    $$

    The first step, $t = 0$, only initializes $v_0$, and its update is zero. With `nesterov`,
    $u_t = \beta_1 m_t + (1 - \beta_1) c_t$. The real and imaginary parts of complex entries are clipped separately.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment. The convergence guarantee holds for any value.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        use_clipping: whether to clip the normalized updates, as the paper recommends.
        clip_value_fn: function that returns the clipping bound $b(t)$, given the step $t$, which is 0 at the first.
        weight_decay: decoupled weight decay $\lambda$, which adds $\lambda w_t$ to $u_t$ after the first step. `update`
            then needs the parameters.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024, algorithm 2.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.9999, needs=DECAY)
    eps: Number = number(1e-6)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)
    use_clipping: bool = eqx.field(static=True, default=True, kw_only=True)
    clip_value_fn: Callable[[Array], Array] = eqx.field(static=True, default=fourth_root, kw_only=True)
    _: KW_ONLY
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def init_leaf(self, p):
        return ScaleByADOPTState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        bound = call_user(self.clip_value_fn, count) if self.use_clipping else None
        return ADOPTNumbers(is_first=count == 0, bound=bound)

    def update_leaf(self, now, g, s, p):
        now, decays = split_decay(now)
        # By the moment before this gradient: normalization and gradient are then independent, on which the proof rests.
        c = g / jnp.maximum(safe_sqrt(s.nu), self.eps)
        c = clip_entries(c, -now.bound, now.bound) if self.use_clipping else c
        c = jnp.where(now.is_first, 0, c)
        mu = moment(self.b1, s.mu, c)
        # The average starts at the first square, and needs no bias correction.
        nu = jnp.where(now.is_first, typed_like(abs_sq(g), s.nu), moment(self.b2, s.nu, abs_sq(g)))
        u = moment(self.b1, mu, c) if self.nesterov else mu
        if self.weight_decay is not None:
            u = jnp.where(now.is_first, 0, self.decay_of(decays, p)) + u
        return u, ScaleByADOPTState(mu=mu, nu=nu)
