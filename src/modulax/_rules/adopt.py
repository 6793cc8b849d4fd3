"""ADOPT: Adam that normalizes the gradient before it enters the momentum."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import authoring as ma
from .._support.placement import typed_like
from .._support.tracing import call_user
from .._transforms.regularization import AbstractDecayingRule, split_decay
from ..tree._arithmetic import clip_entries


def fourth_root(step: ma.Array) -> ma.Array:
    """$t^{1/4}$, the default clipping bound of `ScaleByADOPT` at step $t$."""
    return step**0.25


class ScaleByADOPTState(ma.AbstractState):
    """State of `ScaleByADOPT`: step count, first moment `mu` of normalized updates, second moment `nu`."""

    optax_fields = ("count", "mu", "nu")

    mu: ma.PyTree
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class ADOPTNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of ADOPT: whether it is the first, and the clipping bound."""

    is_first: Any
    bound: Any


class AbstractADOPT(ma.AbstractNesterov, ma.AbstractMoments):
    r"""The hyperparameters of ADOPT.

    Args:
        b2: exponential decay rate $\beta_2$ of the second moment. The convergence guarantee holds for any value.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        use_clipping: whether to clip the normalized gradients, as the paper recommends.
        clip_value_fn: function that returns the clipping bound $b(t)$, given the step $t$, which is 0 at the first; by
            default $t^{1/4}$.
        weight_decay: decoupled weight decay $\lambda$, which adds $\lambda w_t$ to the direction after the first step;
            None for no weight decay. For the $L_2$ penalty that the authors' code has by default, write
            `Chain(AddDecayedWeights(...), ADOPT(...))`.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    b2: ma.Number = ma.number(0.9999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-6)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    use_clipping: bool = ma.static(True)
    clip_value_fn: Callable[[ma.Array], ma.Array] = ma.static(fourth_root)
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)
    mask: ma.Mask = ma.mask()


class ScaleByADOPT(AbstractADOPT, AbstractDecayingRule[ScaleByADOPTState]):
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
        use_clipping: whether to clip the normalized gradients, as the paper recommends.
        clip_value_fn: function that returns the clipping bound $b(t)$, given the step $t$, which is 0 at the first; by
            default $t^{1/4}$.
        weight_decay: decoupled weight decay $\lambda$, which adds $\lambda w_t$ to the direction after the first step;
            None for no weight decay. For the $L_2$ penalty that the authors' code has by default, write
            `Chain(AddDecayedWeights(...), ADOPT(...))`.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024, algorithm 2.
    """

    def init_leaf(self, p):
        return ScaleByADOPTState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def prepare(self, count):
        bound = call_user(self.clip_value_fn, count) if self.use_clipping else None
        return ADOPTNumbers(is_first=count == 0, bound=bound)

    def update_leaf(self, now, g, s, p):
        now, decays = split_decay(now)
        # By the moment before this gradient: normalization and gradient are then independent, on which the proof rests.
        c = g / jnp.maximum(ma.safe_sqrt(s.nu), self.eps)
        c = clip_entries(c, -now.bound, now.bound) if self.use_clipping else c
        c = jnp.where(now.is_first, 0, c)
        mu = ma.moment(self.b1, s.mu, c)
        # The average starts at the first square, and needs no bias correction.
        nu = jnp.where(now.is_first, typed_like(ma.abs_sq(g), s.nu), ma.moment(self.b2, s.nu, ma.abs_sq(g)))
        u = ma.moment(self.b1, mu, c) if self.nesterov else mu
        if self.weight_decay is not None:
            u = jnp.where(now.is_first, 0, self.decay_of(decays, p)) + u
        return u, ScaleByADOPTState(mu=mu, nu=nu)


class ADOPT(AbstractADOPT, ma.AbstractRated):
    r"""Adam modified to converge for any $\beta_2$: normalizes each gradient before it enters the momentum.

        optimizer = ADOPT(1e-3, weight_decay=0.01)

    $$
    \begin{aligned}
    v_0 &= |g_0|^2, \qquad m_0 = 0, \qquad w_1 = w_0 \\
    c_t &= \operatorname{clip}(g_t / \max(\sqrt{v_{t-1}}, \varepsilon),\; \pm b(t)) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) c_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    w_{t+1} &= w_t - \eta\, (m_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, and $t = 1, 2, \dots$ after the first line. The first step only initializes $v_0$,
    and leaves the parameters unchanged. With `nesterov`, $$m_t$ in the last line is replaced by
    $\beta_1 m_t + (1 - \beta_1) c_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment. The convergence guarantee holds for any value.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        use_clipping: whether to clip the normalized gradients, as the paper recommends.
        clip_value_fn: function that returns the clipping bound $b(t)$, given the step $t$, which is 0 at the first; by
            default $t^{1/4}$.
        weight_decay: decoupled weight decay $\lambda$, which adds $\lambda w_t$ to the direction after the first step;
            None for no weight decay. For the $L_2$ penalty that the authors' code has by default, write
            `Chain(AddDecayedWeights(...), ADOPT(...))`.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024.
    """

    direction = ScaleByADOPT
