"""MoMo and MoMoAdam: Polyak-type step sizes from a model of the loss.

Both rules share `momo_numbers`, which computes everything that follows from inner products over all parameters: the
averages of loss and inner products, the step size, and the estimate of the lower bound. `survey` of each rule provides
these inner products, in the plain norm for MoMo and in Adam's norm for MoMoAdam.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .._protocol.fields import Hyperparameter, Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, bias, default_float, moment, ratio, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params, shared
from .._support.types import Count, Follow, Shared
from ..tree._math import inner, total
from .polyak import loss_of
from .regularization import decayed


class MomoState(AbstractState):
    """State of `ScaleByMoMo`: averages of gradients, losses and inner products, and the lower bound of the loss."""

    optax_fields: ClassVar[tuple[str, ...]] = ("exp_avg", "barf", "gamma", "lb", "count")

    exp_avg: PyTree = like_params(moment=1.0)
    barf: Shared[Float[Array, ""]] = shared(None)
    gamma: Shared[Float[Array, ""]] = shared(None)
    lb: Shared[Float[Array, ""]] = shared(None)
    count: Shared[Count] = counter()


class MomoAdamState(AbstractState):
    """State of `ScaleByMoMoAdam`: the averages of `ScaleByMoMo`, the lower bound, and the second moment."""

    optax_fields: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "barf", "gamma", "lb", "count")

    exp_avg: PyTree = like_params(moment=1.0)
    exp_avg_sq: PyTree = like_params(nonnegative=True)
    barf: Shared[Float[Array, ""]] = shared(None)
    gamma: Shared[Float[Array, ""]] = shared(None)
    lb: Shared[Float[Array, ""]] = shared(None)
    count: Shared[Count] = counter()


class MomoNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of MoMo: decay rate, step size, weight decay, and the new shared state."""

    beta: Array
    correction: Any
    tau: Array
    decay: Array
    barf: Array
    gamma: Array
    lb: Array


def start_of_momo(lower_bound: Any) -> dict[str, Array]:
    """The initial values of the shared fields of the state."""
    zeros = {name: jnp.zeros((), default_float()) for name in ("barf", "gamma")}
    return {**zeros, "lb": jnp.array(lower_bound, default_float())}


def momo_numbers(
    rule: "ScaleByMoMo | ScaleByMoMoAdam",
    state: Any,
    beta: Any,
    corrections: tuple[Any, Any],
    loss: Array,
    products: tuple[Array, Array, Array],
) -> MomoNumbers:
    """The numbers of one step of MoMo or MoMoAdam.

    Args:
        rule: the rule, whose hyperparameters are read.
        state: the state before the step.
        beta: decay rate of the averages.
        corrections: bias corrections of the averages and of the second moment.
        loss: the loss.
        products: inner products of gradient and parameters, of average gradient and parameters, and the squared norm of
            the average gradient.
    """
    rho, correction = corrections
    barf, gamma = moment(beta, state.barf, loss), moment(beta, state.gamma, products[0])
    rate, lb = rule.learning_rate, state.lb
    shrink = 1 + rate * rule.weight_decay
    model = shrink * (barf - gamma) + products[1]
    if rule.adapt_lower_bound:
        lower = jnp.maximum(model / (2 * rho * shrink), rule.lower_bound)
        lb = jnp.where(model < shrink * rho * lb, lower, lb)
    gap = jnp.maximum(model - shrink * rho * lb, 0)
    longest = rate / rho
    # The squared norm of the average is zero at a stationary point.
    tau = jnp.minimum(longest, ratio(gap, products[2]))
    if rule.adapt_lower_bound:
        fall = jnp.minimum(longest * products[2], gap)  # tau * products[2], without 0 * inf
        lb = jnp.maximum((barf + products[1] - gamma - 0.5 * fall) / rho, rule.lower_bound)
    tau = tau / shrink if rule.follow == "paper" else tau
    return MomoNumbers(beta, correction, tau, (shrink - 1) / shrink, barf, gamma, lb)


class ScaleByMoMo(AbstractLeafwise[MomoState]):
    r"""SGD with momentum and a Polyak-type step size, from a model of the loss (MoMo).

    $$
    \begin{aligned}
    \bar f_t &= \beta \bar f_{t-1} + (1 - \beta) f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1 - \beta) \langle g_t, w_t \rangle \\
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \sigma = 1 + \eta \lambda \\
    h_t &= \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle \\
    \tau_t &= \min\left(\eta, (h_t - \sigma f^\star)_+ / \|m_t\|^2 \right) \\
    w_{t+1} &= (w_t - \tau_t m_t) / \sigma, \qquad u_t = w_t - w_{t+1}
    \end{aligned}
    $$

    In the first step $\beta = 0$, so the averages start from the first values. Inner products and norms are over all
    parameters. `update` needs the loss $f_t$ as the extra argument `value`.

    With `adapt_lower_bound`, $f^\star$ is estimated. Before the step it is reduced to $h_t / (2 \sigma)$ if
    $h_t < \sigma f^\star$. After the step it becomes
    $\bar f_t - \gamma_t + \langle m_t, w_t \rangle - \frac12 \tau_t \|m_t\|^2$. Neither makes it smaller than
    `lower_bound`.

    The weight decay $\lambda$ is proximal: all of the new parameters are divided by $\sigma$, as in the paper and its
    code. With `follow="optax"` only $w_t$ is divided, not $\tau_t m_t$. Without weight decay the two agree.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule.
        beta: exponential decay rate $\beta$ of the averages.
        lower_bound: $f^\star$, a lower bound of the loss.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "value")

    learning_rate: Hyperparameter = number(1.0)
    beta: Number = number(0.9, needs=DECAY)
    lower_bound: Number = number(0.0)
    weight_decay: Number = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def init_leaf(self, p):
        return MomoState(exp_avg=jnp.zeros_like(p))

    def init_shared(self, params):
        del params
        return start_of_momo(self.lower_bound)

    def survey(self, count, state, updates, params, *, value, **extra):
        del extra
        beta = jnp.where(count == 0, 0, self.beta)  # the averages start at the first values
        # Computed again in `update_leaf`, because a survey returns nothing that has the size of the parameters.
        mean = jtu.tree_map(lambda m, g: moment(beta, m, g), state.exp_avg, updates)
        products = inner(updates, params), inner(mean, params), total(abs_sq, mean)
        return momo_numbers(self, state, beta, (1, 1), loss_of(value), products)

    def share(self, now):
        return {"barf": now.barf, "gamma": now.gamma, "lb": now.lb}

    def update_leaf(self, now, g, s, p):
        m = moment(now.beta, s.exp_avg, g)
        return decayed(now.decay, p) + now.tau * m, MomoState(m)


class ScaleByMoMoAdam(AbstractLeafwise[MomoAdamState]):
    r"""Adam with a Polyak-type step size, from a model of the loss (MoMoAdam).

    $$
    \begin{aligned}
    \bar f_t &= \beta_1 \bar f_{t-1} + (1 - \beta_1) f_t, \qquad
        \gamma_t = \beta_1 \gamma_{t-1} + (1 - \beta_1) \langle g_t, w_t \rangle \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \rho &= 1 - \beta_1^t, \qquad D = \varepsilon + \sqrt{v_t / (1 - \beta_2^t)}, \qquad \sigma = 1 + \eta \lambda \\
    h_t &= \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle \\
    \tau_t &= \min\left(\eta / \rho, (h_t - \sigma \rho f^\star)_+ / \langle m_t, m_t / D \rangle \right) \\
    w_{t+1} &= (w_t - \tau_t m_t / D) / \sigma, \qquad u_t = w_t - w_{t+1}
    \end{aligned}
    $$

    All averages start from zero. `update` needs the loss $f_t$ as the extra argument `value`. `follow` is explained in
    `ScaleByMoMo`. So is `adapt_lower_bound`, whose formulas here give $\rho f^\star$ in place of $f^\star$, with
    $\langle m_t, m_t / D \rangle$ in place of $\|m_t\|^2$.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment and the other averages.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        lower_bound: $f^\star$, a lower bound of the loss.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "value")

    learning_rate: Hyperparameter = number(1e-2)
    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-8)
    lower_bound: Number = number(0.0)
    weight_decay: Number = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def init_leaf(self, p):
        return MomoAdamState(exp_avg=jnp.zeros_like(p), exp_avg_sq=second_moment_like(p))

    def init_shared(self, params):
        del params
        return start_of_momo(self.lower_bound)

    def survey(self, count, state, updates, params, *, value, **extra):
        del extra
        t = count + 1
        rho, bias2 = bias(self.b1, t), bias(self.b2, t)

        def preconditioned(m: Array, v: Array, g: Array) -> Array:
            return m / self._scale(bias2, moment(self.b2, v, abs_sq(g)))

        mean = jtu.tree_map(lambda m, g: moment(self.b1, m, g), state.exp_avg, updates)
        direction = jtu.tree_map(preconditioned, mean, state.exp_avg_sq, updates)
        products = inner(updates, params), inner(mean, params), inner(mean, direction)
        return momo_numbers(self, state, self.b1, (rho, bias2), loss_of(value), products)

    def _scale(self, bias2: Any, v: Array) -> Array:
        return self.eps + safe_sqrt(v / bias2)

    def share(self, now):
        return {"barf": now.barf, "gamma": now.gamma, "lb": now.lb}

    def update_leaf(self, now, g, s, p):
        m = moment(self.b1, s.exp_avg, g)
        v = moment(self.b2, s.exp_avg_sq, abs_sq(g))
        return decayed(now.decay, p) + now.tau * m / self._scale(now.correction, v), MomoAdamState(m, v)
