"""Prodigy: Adam with a step size from an estimate of the distance to the solution.

`distance_estimate.py` explains what it shares with D-Adaptation.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .._protocol.fields import Hyperparameter, Number, OptionalNumber, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import (
    abs_sq,
    moment,
    ratio,
    safe_sqrt,
    second_moment_like,
)
from .._support.checks import DECAY, POSITIVE
from .._support.module import AbstractState, counter, like_params, shared
from .._support.types import Count, FollowReference, Shared
from ..tree._math import inner, total
from .distance_estimate import estimated_rate, first_estimate, wide_zeros


class ProdigyState(AbstractState):
    """State of `ScaleByProdigy`: Adam's moments, weighted sum of gradients, initial parameters, and the estimate."""

    optax_fields: ClassVar[tuple[str, ...]] = (
        "exp_avg",
        "exp_avg_sq",
        "grad_sum",
        "params0",
        "estim_lr",
        "numerator_weighted",
        "count",
    )

    exp_avg: PyTree
    exp_avg_sq: PyTree = like_params(nonnegative=True)
    grad_sum: PyTree = like_params()
    params0: PyTree = like_params(copied=True)
    estim_lr: Shared[Float[Array, ""]] = shared(None, metric=True)
    numerator_weighted: Shared[Float[Array, ""]] = shared(None)
    count: Shared[Count] = counter()


class ProdigyNumbers(NamedTuple):
    """Numbers shared by all leaves in a step: $d_t$, step size, weight of the gradient, and the new shared state."""

    estimate: Array
    rate: Array
    weight: Array
    beta3: Array
    eps: Array
    estim_lr: Array
    numerator_weighted: Array


class ScaleByProdigy(AbstractLeafwise[ProdigyState]):
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

    needs: ClassVar[tuple[str, ...]] = ("params",)

    learning_rate: Hyperparameter = number(1.0)
    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    beta3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Number = number(1e-8)
    estim_lr0: Number = number(1e-6, needs=POSITIVE)
    estim_lr_coef: Number = number(1.0)
    safeguard_warmup: bool = eqx.field(static=True, default=False)
    follow: FollowReference = followed("reference", "paper", "optax")

    def init_leaf(self, p):
        return ProdigyState(
            exp_avg=wide_zeros(p), exp_avg_sq=second_moment_like(p), grad_sum=wide_zeros(p), params0=jnp.array(p)
        )

    def init_shared(self, params):
        del params
        return first_estimate(self.estim_lr0)

    def survey(self, count, state, updates, params, **extra):
        del count, extra
        d, rate = state.estim_lr, estimated_rate(self, state)
        # All sums have the factor `1 / estim_lr0`, which cancels in their ratio: they begin at 1e-6 and not at 1e-12.
        growth = d / self.estim_lr0
        weight = growth * (d if self.safeguard_warmup else rate)
        beta3 = safe_sqrt(self.b2) if self.beta3 is None else self.beta3
        way = jtu.tree_map(jnp.subtract, state.params0, params)
        r = beta3 * state.numerator_weighted + growth * rate * inner(updates, way)
        size = total(lambda s, g: jnp.abs(beta3 * s + weight * g), state.grad_sum, updates)
        # The sum is zero until the first nonzero gradient.
        new_d = jnp.maximum(d, ratio(self.estim_lr_coef * r, size))
        eps = self.eps * (d if self.follow == "paper" else new_d)
        return ProdigyNumbers(d, rate, weight, beta3, eps, new_d, r)

    def share(self, now):
        return {"estim_lr": now.estim_lr, "numerator_weighted": now.numerator_weighted}

    def update_leaf(self, now, g, s, p):
        del p
        m = moment(self.b1, s.exp_avg, now.estimate * g)
        v = moment(self.b2, s.exp_avg_sq, abs_sq(now.estimate * g))
        u = now.rate * m / (now.eps + safe_sqrt(v))
        return u, ProdigyState(m, v, now.beta3 * s.grad_sum + now.weight * g, s.params0)
