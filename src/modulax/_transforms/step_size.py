"""Step sizes from the value of the loss, and from the distance travelled in an array."""

from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PyTree

from .._checks import DECAY, check_choice
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import (
    abs_sq,
    at_least_float32,
    bias,
    common_dtype,
    default_float,
    moment,
    ratio,
    real_dtype,
    safe_sqrt,
)
from .._schedule import Hyperparameter, Number, followed, number
from .._types import Count, Follow
from ..tree._math import inner, norm, total
from .adaptive import second_moment_like


def loss_of(value: ArrayLike) -> Float[Array, ""]:
    """The extra argument `value` beside the numbers that all leaves share."""
    return jnp.asarray(value).astype(default_float())


class ScaleByPolyak(AbstractLeafwise):
    r"""Polyak's step size: the distance to the smallest loss, over the squared norm of the gradient.

    $$
    u_t = \min\left(\frac{f_t - f^\star}{\|g_t\|^2 + \varepsilon},\ \eta_{\max}\right) g_t
    $$

    `update` needs the loss $f_t$ as the extra argument `value`. The norm is over all parameters. Where all gradients
    are zero, so is the update.

    Args:
        f_min: $f^\star$, the smallest value of the loss or a lower bound of it.
        max_learning_rate: $\eta_{\max}$.
        eps: $\varepsilon$.
        variant: `"sps"`, or `"sps+"`, which takes $\max(f_t - f^\star, 0)$ and so never ascends.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020;
        Garrigos et al., [Function Value Learning: Adaptive Learning Rates Based on the Polyak Stepsize and Function
        Splitting in ERM](https://arxiv.org/abs/2307.14528), 2023.
    """

    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("loizou2020", "garrigos2023")

    f_min: Number = number(0.0)
    max_learning_rate: Number = number(1.0)
    eps: Number = number(0.0)
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")

    def __check_init__(self) -> None:
        check_choice(self, "variant", ("sps", "sps+"))

    def survey(self, count, state, updates, params, *, value, **extra):
        del count, state, params, extra
        gap = loss_of(value) - self.f_min
        if self.variant == "sps+":
            gap = jnp.maximum(gap, 0)
        return jnp.minimum(ratio(gap, self.eps + total(abs_sq, updates)), self.max_learning_rate)

    def update_leaf(self, now, g, s, p):
        del p
        return now * g, s


class ScaleByDistanceOverGradientsState(AbstractState):
    """The state of `ScaleByDistanceOverGradients`: for each array its start and two numbers."""

    max_dist: PyTree
    grad_sum_of_squares: PyTree
    init_params: PyTree


class ScaleByDistanceOverGradients(AbstractLeafwise):
    r"""Distance over gradients with a step size for each array: the layer-wise variant of `ScaleByDoG`.

    $$
    \begin{aligned}
    \bar r_t &= \max(\bar r_{t-1}, \|w_t - w_0\|), \qquad \bar r_{-1} = r\, (1 + \|w_0\|) \\
    G_t &= G_{t-1} + \|g_t\|^2 \\
    u_t &= c\, \bar r_t\, g_t / \sqrt{G_t + \varepsilon}
    \end{aligned}
    $$

    The norms are those of one array. The authors recommend to evaluate an average of the parameters.

    Args:
        reps_rel: $r$, 1e-4 for models with batch normalization.
        eps: $\varepsilon$.
        param_dtype: the dtype in which the start is stored.
        global_scale: the factor $c$.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    needs_params: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("ivgi2023",)

    reps_rel: Number = number(1e-6)
    eps: Number = number(1e-8)
    param_dtype: DTypeLike = eqx.field(static=True, default=jnp.float32)
    global_scale: Number = number(1.0)

    def init_leaf(self, p):
        dtype = common_dtype(self.param_dtype, jnp.complex64) if jnp.iscomplexobj(p) else self.param_dtype
        wide = at_least_float32(real_dtype(p.dtype))
        return ScaleByDistanceOverGradientsState(
            max_dist=(self.reps_rel * (1 + norm(p))).astype(wide),
            grad_sum_of_squares=jnp.zeros((), wide),
            init_params=jnp.array(p, dtype),
        )

    def update_leaf(self, now, g, s, p):
        del now
        max_dist = jnp.maximum(s.max_dist, safe_sqrt(jnp.sum(abs_sq(p - s.init_params))))
        squares = s.grad_sum_of_squares + jnp.sum(abs_sq(g))
        rate = self.global_scale * ratio(max_dist, safe_sqrt(self.eps + squares))
        return rate * g, ScaleByDistanceOverGradientsState(max_dist, squares, s.init_params)


class MomoState(AbstractState):
    """The state of `ScaleByMoMo`: the averages of gradients, losses and inner products, and the bound of the loss."""

    exp_avg: PyTree
    barf: Float[Array, ""] | None = None
    gamma: Float[Array, ""] | None = None
    lb: Float[Array, ""] | None = None
    count: Count | None = None


class MomoAdamState(AbstractState):
    """The state of `ScaleByMoMoAdam`: that of `ScaleByMoMo`, and the mean square of the gradients."""

    exp_avg: PyTree
    exp_avg_sq: PyTree
    barf: Float[Array, ""] | None = None
    gamma: Float[Array, ""] | None = None
    lb: Float[Array, ""] | None = None
    count: Count | None = None


class MomoNumbers(NamedTuple):
    """What all leaves share in a step of MoMo: the decay of its averages, the step, and what follows."""

    beta: Array
    correction: Any
    tau: Array
    decay: Array
    barf: Array
    gamma: Array
    lb: Array


def start_of_momo(lower_bound: Any) -> dict[str, Array]:
    """The numbers in the state of MoMo before the first step."""
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
    """The step of MoMo.

    Args:
        rule: the rule, whose fields are read.
        state: the state before the step.
        beta: the decay of the averages.
        corrections: what the averages and the mean square must be divided by.
        loss: the loss.
        products: of gradient and parameters, of the average gradient and the parameters, and of that with itself.
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
    tau = jnp.minimum(longest, ratio(gap, products[2]))
    if rule.adapt_lower_bound:
        fall = jnp.minimum(longest * products[2], gap)  # tau times the squared norm, which could be 0 * inf
        lb = jnp.maximum((barf + products[1] - gamma - 0.5 * fall) / rho, rule.lower_bound)
    tau = tau / shrink if rule.follow == "paper" else tau
    return MomoNumbers(beta, correction, tau, (shrink - 1) / shrink, barf, gamma, lb)


class ScaleByMoMo(AbstractLeafwise):
    r"""Momentum with Polyak's step size, for a model of the loss from averages.

    $$
    \begin{aligned}
    \bar f_t &= \beta \bar f_{t-1} + (1 - \beta) f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1 - \beta) \langle g_t, w_t \rangle \\
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \sigma = 1 + \eta \lambda \\
    \tau_t &= \min\left(\eta, \frac{(\sigma (\bar f_t - \gamma_t - f^\star) + \langle m_t, w_t \rangle)_+}{\|m_t\|^2}
        \right) \\
    w_{t+1} &= (w_t - \tau_t m_t) / \sigma, \qquad u_t = w_t - w_{t+1}
    \end{aligned}
    $$

    At the first step the averages are the values themselves. `update` needs the loss $f_t$ as the extra argument
    `value`. Inner products and norms are over all parameters. With `adapt_lower_bound`, $f^\star$ is halved towards the
    model where it is above it, and follows it afterwards, $f^\star \leftarrow \bar f_t - \gamma_t + \langle m_t, w_t
    \rangle - \frac12 \tau_t \|m_t\|^2$, but never below `lower_bound`.

    The weight decay $\lambda$ is a proximal step: the paper's code and derivation divide all of the new weights by
    $\sigma$. With `follow="optax"` only $w_t$ is divided by it, not $\tau_t m_t$. Without weight decay both are one.

    Args:
        learning_rate: $\eta$, the longest step.
        beta: the decay $\beta$ of the averages.
        lower_bound: $f^\star$, a lower bound of the loss.
        weight_decay: $\lambda$.
        adapt_lower_bound: whether to estimate $f^\star$ on the way.
        follow: `"paper"`, or `"optax"` for what is said above.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs_params: ClassVar[bool] = True
    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

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
        beta = jnp.where(count == 0, 0, self.beta)
        mean = jtu.tree_map(lambda m, g: moment(beta, m, g), state.exp_avg, updates)
        products = inner(updates, params), inner(mean, params), total(abs_sq, mean)
        return momo_numbers(self, state, beta, (1, 1), loss_of(value), products)

    def share(self, now):
        return {"barf": now.barf, "gamma": now.gamma, "lb": now.lb}

    def update_leaf(self, now, g, s, p):
        m = moment(now.beta, s.exp_avg, g)
        return now.decay * p + now.tau * m, MomoState(m)


class ScaleByMoMoAdam(AbstractLeafwise):
    r"""Adam's direction with Polyak's step size, for a model of the loss from averages.

    With $\bar f$, $\gamma$, $m$ and $\sigma$ as in `ScaleByMoMo`, started at zero and with $\beta_1$ for $\beta$:

    $$
    \begin{aligned}
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \rho &= 1 - \beta_1^t, \qquad D = \varepsilon + \sqrt{v_t / (1 - \beta_2^t)} \\
    \tau_t &= \min\left(\frac{\eta}{\rho}, \frac{(\sigma (\bar f_t - \gamma_t - \rho f^\star) + \langle m_t, w_t
        \rangle)_+}{\langle m_t, m_t / D \rangle} \right) \\
    w_{t+1} &= (w_t - \tau_t m_t / D) / \sigma, \qquad u_t = w_t - w_{t+1}
    \end{aligned}
    $$

    `update` needs the loss $f_t$ as the extra argument `value`. What is said there of `adapt_lower_bound` and of
    `follow` holds here too.

    Args:
        learning_rate: $\eta$, the longest step.
        b1: the decay $\beta_1$ of the averages.
        b2: the decay $\beta_2$ of the mean square.
        eps: $\varepsilon$.
        lower_bound: $f^\star$, a lower bound of the loss.
        weight_decay: $\lambda$.
        adapt_lower_bound: whether to estimate $f^\star$ on the way.
        follow: `"paper"`, or `"optax"` for the weight decay that is said in `ScaleByMoMo`.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs_params: ClassVar[bool] = True
    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

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
        return now.decay * p + now.tau * m / self._scale(now.correction, v), MomoAdamState(m, v)
