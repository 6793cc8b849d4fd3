"""Prodigy: Adam with a step size from an estimate of the distance to the solution.

`distance_estimate.py` explains what it shares with D-Adaptation.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._support.types import FollowReference
from .._transforms.distance_estimate import estimated_rate, wide_zeros
from ..tree._math import inner, total
from .step_with_decay import AbstractDecayAtEstimate, AbstractEstimatingOptimizer, AbstractEstimatingRule


class ProdigyState(ma.AbstractState):
    """State of `ScaleByProdigy`: Adam's moments, weighted sum of gradients, initial parameters, and the estimate."""

    optax_fields = ("exp_avg", "exp_avg_sq", "grad_sum", "params0", "estim_lr", "numerator_weighted", "count")

    exp_avg: ma.PyTree
    exp_avg_sq: ma.PyTree = ma.like_params(nonnegative=True)
    grad_sum: ma.PyTree = ma.like_params()
    params0: ma.PyTree = ma.like_params(copied=True)
    estim_lr: ma.Shared[ma.Scalar] = ma.shared(None, starts=lambda rule: rule.estim_lr0, metric=True)
    numerator_weighted: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    count: ma.Shared[ma.Count] = ma.counter()


class ProdigyNumbers(NamedTuple):
    """Numbers shared by all leaves in a step: $d_t$, step size, weight of the gradient, and the new shared state."""

    estimate: ma.Array
    rate: ma.Array
    weight: ma.Array
    beta3: ma.Array
    eps: ma.Array
    estim_lr: ma.Array
    numerator_weighted: ma.Array


class AbstractProdigyEstimate(ma.AbstractFields):
    r"""The hyperparameters of Prodigy that come before the weight decay of the optimizer.

    Args:
        beta3: exponential decay rate $\beta_3$ of $r$ and $s$; by default $\sqrt{\beta_2}$.
        eps: $\varepsilon$, multiplied by the estimate and added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        estim_lr_coef: factor $c$ of the estimates, the hyperparameter to tune if one has to be.
    """

    beta3: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    eps: ma.Number = ma.number(1e-8)
    estim_lr0: ma.Number = ma.number(1e-6, needs=ma.POSITIVE)
    estim_lr_coef: ma.Number = ma.number(1.0)


class AbstractProdigy(AbstractProdigyEstimate):
    r"""The hyperparameters of Prodigy.

    Args:
        safeguard_warmup: whether to leave $\eta_t$ out of $s$, for use with learning rate warm-up.
        follow: `"reference"`, the authors' code; `"paper"` for its $\varepsilon$, or `"optax"` for its bias
            corrections.
    """

    safeguard_warmup: bool = ma.static(False)
    _: ma.KW_ONLY
    follow: FollowReference = ma.followed("reference", "paper", "optax")


class ScaleByProdigy(AbstractProdigy, AbstractEstimatingRule, ma.AbstractLeafwise[ProdigyState]):
    r"""Adam's direction with the step size of Prodigy, which estimates the distance to the solution.

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) d_t^2 |g_t|^2 \\
    r_{t+1} &= \beta_3 r_t + \eta_t d_t^2 \langle g_t, w_0 - w_t \rangle \\
    s_{t+1} &= \beta_3 s_t + \eta_t d_t^2 g_t \\
    d_{t+1} &= \max(d_t, c\, r_{t+1} / \|s_{t+1}\|_1) \\
    u_t &= \eta_t d_t m_{t+1} / (\sqrt{v_{t+1}} + d_{t+1} \varepsilon)
    \end{aligned}
    $$

    Inner product and norm are over all parameters. The state holds $r$ and $s$ divided by $d_0$. The estimate stays
    $d_0$ until the first nonzero gradient.

    The paper, the authors' code and optax differ. With `follow="paper"`, $\varepsilon$ is multiplied by $d_t$. With
    `follow="optax"`, $\eta_t$ is multiplied by Adam's bias corrections,
    $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$.

    The learning rate is an argument here, because the estimate depends on the steps.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        beta3: exponential decay rate $\beta_3$ of $r$ and $s$; by default $\sqrt{\beta_2}$.
        eps: $\varepsilon$, multiplied by the estimate and added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        estim_lr_coef: factor $c$ of the estimates, the hyperparameter to tune if one has to be.
        safeguard_warmup: whether to leave $\eta_t$ out of $s$, for use with learning rate warm-up.
        follow: `"reference"`, the authors' code; `"paper"` for its $\varepsilon$, or `"optax"` for its bias
            corrections.

    References:
        Mishchenko and Defazio, [Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner](https://arxiv.org/abs/2306.06101), 2023.
    """

    needs = ("params",)

    def init_leaf(self, p):
        return ProdigyState(
            exp_avg=wide_zeros(p), exp_avg_sq=ma.second_moment_like(p), grad_sum=wide_zeros(p), params0=jnp.array(p)
        )

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        d, rate = state.estim_lr, estimated_rate(self, state)
        # All sums have the factor `1 / estim_lr0`, which cancels in their ratio: they begin at 1e-6 and not at 1e-12.
        growth = d / self.estim_lr0
        weight = growth * (d if self.safeguard_warmup else rate)
        beta3 = ma.safe_sqrt(self.b2) if self.beta3 is None else self.beta3
        way = jtu.tree_map(jnp.subtract, state.params0, params)
        r = beta3 * state.numerator_weighted + growth * rate * inner(updates, way)
        size = total(lambda s, g: jnp.abs(beta3 * s + weight * g), state.grad_sum, updates)
        # The sum is zero until the first nonzero gradient.
        new_d = jnp.maximum(d, ma.ratio(self.estim_lr_coef * r, size))
        eps = self.eps * (d if self.follow == "paper" else new_d)
        return ProdigyNumbers(d, rate, weight, beta3, eps, new_d, r)

    def update_leaf(self, now, g, s, p):
        del p
        m = ma.moment(self.b1, s.exp_avg, now.estimate * g)
        v = ma.moment(self.b2, s.exp_avg_sq, ma.abs_sq(now.estimate * g))
        u = now.rate * m / (now.eps + ma.safe_sqrt(v))
        return u, ProdigyState(m, v, now.beta3 * s.grad_sum + now.weight * g, s.params0)


class Prodigy(AbstractProdigy, AbstractDecayAtEstimate, AbstractProdigyEstimate, AbstractEstimatingOptimizer):
    r"""AdamW that estimates its step size while training, so that there is no learning rate to tune.

        optimizer = Prodigy(schedules.CosineDecay(1.0, 10_000), weight_decay=0.01)

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) d_t^2 |g_t|^2 \\
    r_{t+1} &= \beta_3 r_t + \eta_t d_t^2 \langle g_t, w_0 - w_t \rangle \\
    s_{t+1} &= \beta_3 s_t + \eta_t d_t^2 g_t \\
    d_{t+1} &= \max(d_t, c\, r_{t+1} / \|s_{t+1}\|_1) \\
    w_{t+1} &= w_t - \eta_t d_t \left( \frac{m_{t+1}}{\sqrt{v_{t+1}} + d_{t+1} \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and $m_0 = v_0 = s_0 = r_0 = 0$. Inner product and norm are
    over all parameters. The authors' package, prodigyopt, computes the same by default.

    With `follow="paper"`, $\varepsilon$ is multiplied by $d_t$ instead of $d_{t+1}$. With `follow="optax"`, $\eta_t$ is
    multiplied by $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$, as with the package's `use_bias_correction=True`.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        betas: exponential decay rates $\beta_1$ and $\beta_2$ of the first and the second moment.
        beta3: exponential decay rate $\beta_3$ of $r$ and $s$; by default $\sqrt{\beta_2}$.
        eps: $\varepsilon$, multiplied by the estimate and added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        estim_lr_coef: factor $c$ of the estimates, the hyperparameter to tune if one has to be.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\eta_t d_t$.
        safeguard_warmup: whether to leave $\eta_t$ out of $s$, for use with learning rate warm-up.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: `"reference"`, the authors' code; `"paper"` for its $\varepsilon$, or `"optax"` for its bias
            corrections.

    References:
        Mishchenko and Defazio, [Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner](https://arxiv.org/abs/2306.06101), 2023, and the authors'
        [code](https://github.com/konstmish/prodigy).
    """

    direction = ScaleByProdigy
    mask: ma.Mask = ma.mask()
