"""LaProp: a momentum of normalized gradients, weighted by their learning rates."""

from typing import ClassVar

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.decayed_step import DecayedStep


class ScaleByLaPropState(ma.AbstractState):
    """State of `ScaleByLaProp`: step count, momentum `mu`, second moment `nu`, and the mean of the learning rates.

    `nu_max` is the largest second moment. If it is centered, `mean` and `mean_square`, the means of the updates and of
    their squares, take the place of `nu`. What is not needed is None.
    """

    mu: ma.PyTree
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    nu_max: ma.PyTree = ma.like_params(nonnegative=True)
    # Exact, because a difference of the two is divided by.
    mean: ma.PyTree = ma.like_params(exact=True)
    mean_square: ma.PyTree = ma.like_params(exact=True, nonnegative=True)
    mean_rate: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractLaProp(ma.AbstractFields):
    r"""The hyperparameters of LaProp.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the momentum; by default that of the parameters. The second moment is stored in at least
            float32.
        centered: whether to divide by the root of the variance, from the eleventh step on.
        amsgrad: whether to divide by the root of the largest second moment so far.
    """

    learning_rate: ma.Number = ma.number(1.0)
    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-15)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    centered: bool = ma.static(False)
    amsgrad: bool = ma.static(False)


class ScaleByLaProp(AbstractLaProp, ma.AbstractLeafwise[ScaleByLaPropState]):
    r"""Averages updates after dividing each by the root of its second moment: the direction of LaProp.

    $$
    \begin{aligned}
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    r_t &= \beta_1 r_{t-1} + (1 - \beta_1) \eta_t \\
    u_t &= u_{t-1} + \frac{(1 - \beta_1) \eta_t}{r_t}
        \left( \frac{g_t}{\sqrt{\hat v_t} + \varepsilon} - u_{t-1} \right)
    \end{aligned}
    $$

    with $r_0 = u_0 = 0$: the average with bias correction, in which $\eta_t$ is the weight of a gradient. So the step
    $\eta_t u_t$ of a learning rate that falls to zero is not that of the large rates before it. Give a schedule of the
    learning rate to both, `Chain(ScaleByLaProp(rate), ScaleByLearningRate(rate))`. A constant one changes nothing here.

    The variance $v_t - |\bar g_t|^2$ takes the place of $v_t$ if `centered`, from the eleventh step on, where
    $\bar g_t = \beta_2 \bar g_{t-1} + (1 - \beta_2) g_t$; with `amsgrad`, its largest value so far does. As in the
    authors' code, the largest value of centered moments starts with the eleventh step.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the momentum; by default that of the parameters. The second moment is stored in at least
            float32.
        centered: whether to divide by the root of the variance, from the eleventh step on.
        amsgrad: whether to divide by the root of the largest second moment so far.

    References:
        Ziyin, Wang and Ueda, [LaProp: Separating Momentum and Adaptivity in Adam](https://arxiv.org/abs/2002.04839),
        2020, and the authors' [code](https://github.com/Z-T-WANG/LaProp-Optimizer).
    """

    _steps_before_centering: ClassVar[int] = 10

    def init_leaf(self, p):
        return ScaleByLaPropState(
            mu=ma.zeros_in(p, self.mu_dtype),
            nu=None if self.centered else ma.second_moment_like(p),
            nu_max=ma.second_moment_like(p) if self.amsgrad else None,
            # In bfloat16, a variance would be a difference of rounded numbers.
            mean=ma.zeros_in(p, ma.at_least_float32(p.dtype)) if self.centered else None,
            mean_square=ma.second_moment_like(p) if self.centered else None,
        )

    def _prepare(self, count, state):
        mean_rate = ma.moment(self.b1, state.mean_rate, self.learning_rate)
        is_zero = mean_rate == 0  # of a warm-up from zero; a direction of zero then stays zero
        weight = jnp.where(is_zero, 0, (1 - self.b1) * self.learning_rate / jnp.where(is_zero, 1, mean_rate))
        return mean_rate, weight, ma.bias(self.b2, count + 1), count >= self._steps_before_centering

    def share(self, now):
        return {"mean_rate": now[0]}

    def update_leaf(self, now, g, s, p):
        del p
        _, weight, bias2, is_late = now
        nu = square = ma.moment(self.b2, s.mean_square if self.centered else s.nu, ma.abs_sq(g))
        mean, nu_max = s.mean, s.nu_max
        if self.centered:
            mean = ma.moment(self.b2, s.mean, g)
            # Rounded, the difference may be negative.
            square = jnp.where(is_late, jnp.maximum(nu - ma.abs_sq(mean), 0), nu)
        if self.amsgrad:
            largest = jnp.maximum(s.nu_max, square)
            nu_max = jnp.where(is_late, largest, s.nu_max) if self.centered else largest
            square = jnp.where(is_late, largest, square) if self.centered else largest
        normalized = g / (self.eps + ma.safe_sqrt(square / bias2))
        mu = s.mu + weight * (normalized - s.mu)
        if self.centered:
            return mu, ScaleByLaPropState(mu=mu, nu=None, nu_max=nu_max, mean=mean, mean_square=nu)
        return mu, ScaleByLaPropState(mu=mu, nu=nu, nu_max=nu_max, mean=None, mean_square=None)


class LaProp(AbstractLaProp, ma.AbstractOptimizer):
    r"""Adam that normalizes gradients before the momentum, which decouples the two decay rates.

        optimizer = LaProp(4e-4, b1=0.9, b2=0.9)

    $$
    \begin{aligned}
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \eta_t \frac{g_t}{\sqrt{\hat v_t} + \varepsilon} \\
    r_t &= \beta_1 r_{t-1} + (1 - \beta_1) \eta_t \\
    w_{t+1} &= (1 - \lambda) \left( w_t - \frac{\eta_t}{r_t} m_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = r_0 = 0$. The momentum holds the learning
    rates of its gradients, and $r_t / \eta_t$ corrects its bias, $1 - \beta_1^t$ for a constant rate. As in the
    authors' code, the weight decay is not multiplied by the learning rate.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        mu_dtype: dtype of the momentum; by default that of the parameters. The second moment is stored in at least
            float32.
        weight_decay: weight decay $\lambda$, the fraction by which each step shrinks the parameters.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        centered: whether to divide by the root of the variance, from the eleventh step on.
        amsgrad: whether to divide by the root of the largest second moment so far.

    References:
        Ziyin, Wang and Ueda, [LaProp: Separating Momentum and Adaptivity in Adam](https://arxiv.org/abs/2002.04839),
        2020, and the authors' [code](https://github.com/Z-T-WANG/LaProp-Optimizer).
    """

    learning_rate: ma.Number = ma.number(4e-4)
    weight_decay: ma.Number = ma.number(0.0)
    mask: ma.Mask = ma.mask()

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByLaProp), self._part(DecayedStep, kind="independent", after=True))
