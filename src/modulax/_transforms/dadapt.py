"""D-Adaptation for Adam: a step size from a lower bound of the distance to the solution.

`distance_estimate.py` explains what it shares with Prodigy.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .._protocol.fields import Hyperparameter, Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, ratio, safe_sqrt, second_moment_like
from .._support.checks import DECAY, POSITIVE
from .._support.module import AbstractState, counter, like_params, shared
from .._support.types import Count, FollowReference, Shared
from ..tree._math import inner, total
from .distance_estimate import estimated_rate, first_estimate, wide_zeros


class DAdaptAdamWState(AbstractState):
    """State of `ScaleByDAdaptAdam`: moments of the steps, weighted sum of gradients, estimate of the distance."""

    optax_fields: ClassVar[tuple[str, ...]] = (
        "exp_avg",
        "exp_avg_sq",
        "grad_sum",
        "estim_lr",
        "numerator_weighted",
        "count",
    )

    exp_avg: PyTree
    exp_avg_sq: PyTree = like_params(nonnegative=True)
    grad_sum: PyTree = like_params()
    estim_lr: Shared[Float[Array, ""]] = shared(None, metric=True)
    numerator_weighted: Shared[Float[Array, ""]] = shared(None)
    count: Shared[Count] = counter()


class DAdaptNumbers(NamedTuple):
    """Numbers shared by all leaves in a step: the step size, the decay rate of the sums, and the new shared state."""

    rate: Array
    decay: Array
    estim_lr: Array
    numerator_weighted: Array


class ScaleByDAdaptAdam(AbstractLeafwise[DAdaptAdamWState]):
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

    learning_rate: Hyperparameter = number(1.0)
    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    estim_lr0: Number = number(1e-6, needs=POSITIVE)
    follow: FollowReference = followed("reference", "paper", "optax")

    def init_leaf(self, p):
        return DAdaptAdamWState(exp_avg=wide_zeros(p), exp_avg_sq=second_moment_like(p), grad_sum=wide_zeros(p))

    def init_shared(self, params):
        del params
        return first_estimate(self.estim_lr0)

    def survey(self, count, state, updates, params, **extra):
        del count, params, extra
        rate, decay = estimated_rate(self, state), safe_sqrt(self.b2)

        def preconditioned(s: Array, v: Array, g: Array) -> Array:
            v = moment(self.b2, v, abs_sq(g)) if self.follow == "paper" else v
            return s / (self.eps + safe_sqrt(v))

        s = jtu.tree_map(preconditioned, state.grad_sum, state.exp_avg_sq, updates)
        r = moment(decay, state.numerator_weighted, rate * inner(updates, s))
        size = total(lambda s, g: jnp.abs(moment(decay, s, rate * g)), state.grad_sum, updates)
        # The sum is zero until the first nonzero gradient.
        estimate = ratio(r, (1 - decay) * size)
        return DAdaptNumbers(rate, decay, jnp.maximum(state.estim_lr, estimate), r)

    def share(self, now):
        return {"estim_lr": now.estim_lr, "numerator_weighted": now.numerator_weighted}

    def update_leaf(self, now, g, s, p):
        del p
        m = moment(self.b1, s.exp_avg, now.rate * g)
        v = moment(self.b2, s.exp_avg_sq, abs_sq(g))
        u = m / (self.eps + safe_sqrt(v))
        return u, DAdaptAdamWState(m, v, moment(now.decay, s.grad_sum, now.rate * g))
