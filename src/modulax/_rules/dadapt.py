"""D-Adaptation for Adam: a step size from a lower bound of the distance to the solution.

`distance_estimate.py` explains what it shares with Prodigy.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._support.types import FollowReference
from .._transforms.distance_estimate import estimated_rate, wide_zeros
from ..tree._math import inner, total
from .step_with_decay import AbstractDecayAtEstimate, AbstractEstimatingOptimizer, AbstractEstimatingRule


class DAdaptAdamWState(ma.AbstractState):
    """State of `ScaleByDAdaptAdam`: moments of the steps, weighted sum of gradients, estimate of the distance."""

    optax_fields = ("exp_avg", "exp_avg_sq", "grad_sum", "estim_lr", "numerator_weighted", "count")

    exp_avg: ma.PyTree
    exp_avg_sq: ma.PyTree = ma.like_params(nonnegative=True)
    grad_sum: ma.PyTree = ma.like_params()
    estim_lr: ma.Shared[ma.Scalar] = ma.shared(None, starts=lambda rule: rule.estim_lr0, metric=True)
    numerator_weighted: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    count: ma.Shared[ma.Count] = ma.counter()


class DAdaptNumbers(NamedTuple):
    """Numbers shared by all leaves in a step: the step size, the decay rate of the sums, and the new shared state."""

    rate: ma.Array
    decay: ma.Array
    estim_lr: ma.Array
    numerator_weighted: ma.Array


class AbstractDAdaptAdam(ma.AbstractFields):
    r"""The hyperparameters of Adam with D-Adaptation, without the decay rates.

    Args:
        eps: $\varepsilon$, added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        follow: `"reference"`, the authors' code; `"paper"` for its weight of $r$, or `"optax"` for its bias
            corrections.
    """

    eps: ma.Number = ma.number(1e-8)
    estim_lr0: ma.Number = ma.number(1e-6, needs=ma.POSITIVE)
    _: ma.KW_ONLY
    follow: FollowReference = ma.followed("reference", "paper", "optax")


class ScaleByDAdaptAdam(AbstractDAdaptAdam, AbstractEstimatingRule, ma.AbstractLeafwise[DAdaptAdamWState]):
    r"""Adam's direction with a step size from D-Adaptation, which estimates the distance to the solution.

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) \eta_t d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) |g_t|^2 \\
    s_{t+1} &= \sqrt{\beta_2} s_t + (1 - \sqrt{\beta_2}) \eta_t d_t g_t \\
    r_{t+1} &= \sqrt{\beta_2} r_t
        + (1 - \sqrt{\beta_2}) \eta_t d_t \langle g_t, s_t / (\sqrt{v_t} + \varepsilon) \rangle \\
    d_{t+1} &= \max(d_t, r_{t+1} / ((1 - \sqrt{\beta_2}) \|s_{t+1}\|_1)) \\
    u_t &= m_{t+1} / (\sqrt{v_{t+1}} + \varepsilon)
    \end{aligned}
    $$

    Inner product and norm are over all parameters. The estimate stays $d_0$ until the first nonzero gradient.

    The paper, the authors' code and optax differ. With `follow="paper"`, $r$ is weighted by $v_{t+1}$. With
    `follow="optax"`, $\eta_t$ is multiplied by Adam's bias corrections,
    $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$.

    The learning rate is an argument here, because the estimate depends on the steps.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        follow: `"reference"`, the authors' code; `"paper"` for its weight of $r$, or `"optax"` for its bias
            corrections.

    References:
        Defazio and Mishchenko, [Learning-Rate-Free Learning by D-Adaptation](https://arxiv.org/abs/2301.07733), 2023.
    """

    def init_leaf(self, p):
        return DAdaptAdamWState(exp_avg=wide_zeros(p), exp_avg_sq=ma.second_moment_like(p), grad_sum=wide_zeros(p))

    def survey(self, count, state, updates, params, **extra):
        del count, params, extra
        rate, decay = estimated_rate(self, state), ma.safe_sqrt(self.b2)

        def preconditioned(s: ma.Array, v: ma.Array, g: ma.Array) -> ma.Array:
            v = ma.moment(self.b2, v, ma.abs_sq(g)) if self.follow == "paper" else v
            return s / (self.eps + ma.safe_sqrt(v))

        s = jtu.tree_map(preconditioned, state.grad_sum, state.exp_avg_sq, updates)
        r = ma.moment(decay, state.numerator_weighted, rate * inner(updates, s))
        size = total(lambda s, g: jnp.abs(ma.moment(decay, s, rate * g)), state.grad_sum, updates)
        # The sum is zero until the first nonzero gradient.
        estimate = ma.ratio(r, (1 - decay) * size)
        return DAdaptNumbers(rate, decay, jnp.maximum(state.estim_lr, estimate), r)

    def update_leaf(self, now, g, s, p):
        del p
        m = ma.moment(self.b1, s.exp_avg, now.rate * g)
        v = ma.moment(self.b2, s.exp_avg_sq, ma.abs_sq(g))
        u = m / (self.eps + ma.safe_sqrt(v))
        return u, DAdaptAdamWState(m, v, ma.moment(now.decay, s.grad_sum, now.rate * g))


class DAdaptAdamW(AbstractDecayAtEstimate, AbstractDAdaptAdam, AbstractEstimatingOptimizer):
    r"""AdamW with a step size estimated by D-Adaptation, so that there is no learning rate to tune.

        optimizer = DAdaptAdamW(schedules.CosineDecay(1.0, 10_000), weight_decay=0.01)

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) \eta_t d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) |g_t|^2 \\
    s_{t+1} &= \sqrt{\beta_2} s_t + (1 - \sqrt{\beta_2}) \eta_t d_t g_t \\
    r_{t+1} &= \sqrt{\beta_2} r_t
        + (1 - \sqrt{\beta_2}) \eta_t d_t \langle g_t, s_t / (\sqrt{v_t} + \varepsilon) \rangle \\
    d_{t+1} &= \max(d_t, r_{t+1} / ((1 - \sqrt{\beta_2}) \|s_{t+1}\|_1)) \\
    w_{t+1} &= w_t - m_{t+1} / (\sqrt{v_{t+1}} + \varepsilon) - \eta_t d_t \lambda w_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and $m_0 = v_0 = s_0 = r_0 = 0$. Inner product and norm are
    over all parameters. The authors' package computes the same with `DAdaptAdam(decouple=True)`.

    With `follow="paper"`, $r$ is weighted by $v_{t+1}$ instead of $v_t$. With `follow="optax"`, $\eta_t$ is multiplied
    by $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$, as with the package's `use_bias_correction=True`.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        betas: exponential decay rates $\beta_1$ and $\beta_2$ of the first and the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\eta_t d_t$.
        follow: `"reference"`, the authors' code; `"paper"` for its weight of $r$, or `"optax"` for its bias
            corrections.

    References:
        Defazio and Mishchenko, [Learning-Rate-Free Learning by D-Adaptation](https://arxiv.org/abs/2301.07733), 2023,
        and the authors' [code](https://github.com/facebookresearch/dadaptation).
    """

    direction = ScaleByDAdaptAdam
