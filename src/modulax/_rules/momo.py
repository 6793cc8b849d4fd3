"""MoMo and MoMoAdam: Polyak-type step sizes from a model of the loss.

Both rules share `momo_numbers`, which computes everything that follows from inner products over all parameters: the
averages of loss and inner products, the step size, and the estimate of the lower bound. `survey` of each rule provides
these inner products, in the plain norm for MoMo and in Adam's norm for MoMoAdam.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._support.arithmetic import loss_of
from .._transforms.regularization import decayed
from ..tree._math import inner, total


class MomoState(ma.AbstractState):
    """State of `ScaleByMoMo`: averages of gradients, losses and inner products, and the lower bound of the loss."""

    optax_fields = ("exp_avg", "barf", "gamma", "lb", "count")

    exp_avg: ma.PyTree = ma.like_params(moment=1.0)
    barf: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    gamma: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    lb: ma.Shared[ma.Scalar] = ma.shared(None, starts=lambda rule: rule.lower_bound)
    count: ma.Shared[ma.Count] = ma.counter()


class MomoAdamState(ma.AbstractState):
    """State of `ScaleByMoMoAdam`: the averages of `ScaleByMoMo`, the lower bound, and the second moment."""

    optax_fields = ("exp_avg", "exp_avg_sq", "barf", "gamma", "lb", "count")

    exp_avg: ma.PyTree = ma.like_params(moment=1.0)
    exp_avg_sq: ma.PyTree = ma.like_params(nonnegative=True)
    barf: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    gamma: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    lb: ma.Shared[ma.Scalar] = ma.shared(None, starts=lambda rule: rule.lower_bound)
    count: ma.Shared[ma.Count] = ma.counter()


class MomoNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of MoMo: decay rate, step size, weight decay, and the new shared state."""

    beta: ma.Array
    correction: Any
    tau: ma.Array
    decay: ma.Array
    barf: ma.Array
    gamma: ma.Array
    lb: ma.Array


def momo_numbers(
    rule: "ScaleByMoMo | ScaleByMoMoAdam",
    state: Any,
    beta: Any,
    corrections: tuple[Any, Any],
    loss: ma.Array,
    products: tuple[ma.Array, ma.Array, ma.Array],
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
    barf, gamma = ma.moment(beta, state.barf, loss), ma.moment(beta, state.gamma, products[0])
    rate, lb = rule.learning_rate, state.lb
    shrink = 1 + rate * rule.weight_decay
    model = shrink * (barf - gamma) + products[1]
    if rule.adapt_lower_bound:
        lower = jnp.maximum(model / (2 * rho * shrink), rule.lower_bound)
        lb = jnp.where(model < shrink * rho * lb, lower, lb)
    gap = jnp.maximum(model - shrink * rho * lb, 0)
    longest = rate / rho
    # The squared norm of the average is zero at a stationary point.
    tau = jnp.minimum(longest, ma.ratio(gap, products[2]))
    if rule.adapt_lower_bound:
        fall = jnp.minimum(longest * products[2], gap)  # tau * products[2], without 0 * inf
        lb = jnp.maximum((barf + products[1] - gamma - 0.5 * fall) / rho, rule.lower_bound)
    tau = tau / shrink if rule.follow == "paper" else tau
    return MomoNumbers(beta, correction, tau, (shrink - 1) / shrink, barf, gamma, lb)


class AbstractLongestStep(ma.AbstractFields):
    r"""The learning rate of MoMo and MoMoAdam, which bounds the step size.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
    """

    learning_rate: ma.Number = ma.number(1.0)


class AbstractLossModel(ma.AbstractFields):
    r"""The hyperparameters of the model of the loss, and of the weight decay in it.

    Args:
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.
    """

    lower_bound: ma.Number = ma.number(0.0)
    weight_decay: ma.Number = ma.number(0.0)
    adapt_lower_bound: bool = ma.static(False)
    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()


class AbstractAverages(AbstractLongestStep):
    r"""The learning rate and the decay rate of MoMo.

    Args:
        beta: exponential decay rate $\beta$ of the averages.
    """

    beta: ma.Number = ma.number(0.9, needs=ma.DECAY)


class AbstractAdamAverages(ma.AbstractMoments, AbstractLongestStep):
    r"""The learning rate and the moments of MoMoAdam.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment and the other averages.
    """

    learning_rate: ma.Number = ma.number(1e-2)


class ScaleByMoMo(AbstractLossModel, AbstractAverages, ma.AbstractLeafwise[MomoState]):
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
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        beta: exponential decay rate $\beta$ of the averages.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs = ("params", "value")

    def init_leaf(self, p):
        return MomoState(exp_avg=jnp.zeros_like(p))

    def survey(self, count, state, updates, params, *, value, **extra):
        del extra
        beta = jnp.where(count == 0, 0, self.beta)  # the averages start at the first values
        # Computed again in `update_leaf`, because a survey returns nothing that has the size of the parameters.
        mean = jtu.tree_map(lambda m, g: ma.moment(beta, m, g), state.exp_avg, updates)
        products = inner(updates, params), inner(mean, params), total(ma.abs_sq, mean)
        return momo_numbers(self, state, beta, (1, 1), loss_of(value), products)

    def update_leaf(self, now, g, s, p):
        m = ma.moment(now.beta, s.exp_avg, g)
        return decayed(now.decay, p) + now.tau * m, MomoState(m)


class ScaleByMoMoAdam(AbstractLossModel, AbstractAdamAverages, ma.AbstractLeafwise[MomoAdamState]):
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
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        b1: exponential decay rate $\beta_1$ of the first moment and the other averages.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs = ("params", "value")

    def init_leaf(self, p):
        return MomoAdamState(exp_avg=jnp.zeros_like(p), exp_avg_sq=ma.second_moment_like(p))

    def survey(self, count, state, updates, params, *, value, **extra):
        del extra
        t = count + 1
        rho, bias2 = ma.bias(self.b1, t), ma.bias(self.b2, t)

        def preconditioned(m: ma.Array, v: ma.Array, g: ma.Array) -> ma.Array:
            return m / self._scale(bias2, ma.moment(self.b2, v, ma.abs_sq(g)))

        mean = jtu.tree_map(lambda m, g: ma.moment(self.b1, m, g), state.exp_avg, updates)
        direction = jtu.tree_map(preconditioned, mean, state.exp_avg_sq, updates)
        products = inner(updates, params), inner(mean, params), inner(mean, direction)
        return momo_numbers(self, state, self.b1, (rho, bias2), loss_of(value), products)

    def _scale(self, bias2: Any, v: ma.Array) -> ma.Array:
        return self.eps + ma.safe_sqrt(v / bias2)

    def update_leaf(self, now, g, s, p):
        m = ma.moment(self.b1, s.exp_avg, g)
        v = ma.moment(self.b2, s.exp_avg_sq, ma.abs_sq(g))
        return decayed(now.decay, p) + now.tau * m / self._scale(now.correction, v), MomoAdamState(m, v)


class MoMo(AbstractLossModel, AbstractAverages, ma.AbstractOptimizer):
    r"""SGD with momentum and an adaptive learning rate (Polyak-type step size), computed from the loss.

        optimizer = MoMo(1.0)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    \begin{aligned}
    \bar f_t &= \beta \bar f_{t-1} + (1 - \beta) f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1 - \beta) \langle g_t, w_t \rangle \\
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \sigma = 1 + \eta \lambda \\
    \tau_t &= \min\left(\eta, \frac{(\sigma (\bar f_t - \gamma_t - f^\star) + \langle m_t, w_t \rangle)_+}{\|m_t\|^2}
        \right) \\
    w_{t+1} &= (w_t - \tau_t m_t) / \sigma
    \end{aligned}
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$. In the first step $\beta = 0$. Inner products and norms are
    over all parameters. With `follow="optax"`, $w_{t+1} = w_t / \sigma - \tau_t m_t$.

    With `adapt_lower_bound`, $f^\star$ changes twice in each step, but never below `lower_bound`. Let
    $h_t = \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle$. If $h_t < \sigma f^\star$, then
    $f^\star \leftarrow h_t / (2 \sigma)$ before the step. After it,
    $f^\star \leftarrow \bar f_t - \gamma_t + \langle m_t, w_t \rangle - \frac12 \tau_t \|m_t\|^2$.

    `update` and `step` need the loss, as `value`.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        beta: exponential decay rate $\beta$ of the averages.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs = ("value",)

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByMoMo), ma.Scale(-1.0))


class MoMoAdam(AbstractLossModel, AbstractAdamAverages, ma.AbstractOptimizer):
    r"""Adam with an adaptive learning rate (Polyak-type step size), computed from the loss.

        optimizer = MoMoAdam(1e-2)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    \begin{aligned}
    \bar f_t &= \beta_1 \bar f_{t-1} + (1 - \beta_1) f_t, \qquad
        \gamma_t = \beta_1 \gamma_{t-1} + (1 - \beta_1) \langle g_t, w_t \rangle \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \rho &= 1 - \beta_1^t, \qquad D = \varepsilon + \sqrt{v_t / (1 - \beta_2^t)}, \qquad \sigma = 1 + \eta \lambda \\
    \tau_t &= \min\left(\frac{\eta}{\rho}, \frac{(\sigma (\bar f_t - \gamma_t - \rho f^\star) + \langle m_t, w_t
        \rangle)_+}{\langle m_t, m_t / D \rangle} \right) \\
    w_{t+1} &= (w_t - \tau_t m_t / D) / \sigma
    \end{aligned}
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and all averages zero at $t = 0$. Inner
    products are over all parameters. With `follow="optax"`, $w_{t+1} = w_t / \sigma - \tau_t m_t / D$.

    With `adapt_lower_bound`, $f^\star$ changes twice in each step, but never below `lower_bound`. Let
    $h_t = \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle$. If $h_t < \sigma \rho f^\star$, then
    $f^\star \leftarrow h_t / (2 \rho \sigma)$ before the step. After it, $f^\star \leftarrow (\bar f_t - \gamma_t +
    \langle m_t, w_t \rangle - \frac12 \tau_t \langle m_t, m_t / D \rangle) / \rho$.

    `update` and `step` need the loss, as `value`.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        b1: exponential decay rate $\beta_1$ of the first moment and the other averages.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs = ("value",)

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByMoMoAdam), ma.Scale(-1.0))
