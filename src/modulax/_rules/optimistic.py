"""Optimistic gradient descent: gradients extrapolated by their last change."""

import jax.numpy as jnp

from .. import authoring as ma
from .adam import ScaleByAdam


class ScaleByOptimisticGradientState(ma.AbstractState):
    """State of `ScaleByOptimisticGradient`: step count, and the previous updates."""

    optax_fields = ("is_initial_step", "previous_gradient")

    previous_gradient: ma.PyTree
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractOptimistic(ma.AbstractFields):
    r"""The hyperparameters of an extrapolation by the last change.

    Args:
        alpha: weight $\alpha$ of the gradient.
        beta: weight $\beta$ of its change since the previous step.
    """

    alpha: ma.Number = ma.number(1.0)
    beta: ma.Number = ma.number(1.0)


class ScaleByOptimisticGradient(AbstractOptimistic, ma.AbstractLeafwise[ScaleByOptimisticGradientState]):
    r"""Extrapolates the update by its last change, for games and other min-max problems (optimistic gradient descent).

    $$
    u_t = \alpha g_t + \beta (g_t - g_{t-1}), \qquad g_0 = g_1
    $$

    In a game, where the loss of each player depends on the others, this converges where gradient descent cycles.

    Args:
        alpha: weight $\alpha$ of the gradient.
        beta: weight $\beta$ of its change since the previous step.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    def init_leaf(self, p):
        return ScaleByOptimisticGradientState(previous_gradient=jnp.zeros_like(p))

    def prepare(self, count):
        return count > 0

    def update_leaf(self, now, g, s, p):
        del p
        # The zeros of a fresh state are not a previous gradient.
        change = jnp.where(now, g - s.previous_gradient, 0)
        u = self.alpha * g + self.beta * change
        return u, ScaleByOptimisticGradientState(previous_gradient=g)


class OptimisticGradientDescent(AbstractOptimistic, ma.AbstractRated):
    r"""Gradient descent with extrapolated gradients, for games and other min-max problems.

        optimizer = OptimisticGradientDescent(0.1)

    $$
    w_{t+1} = w_t - \eta \big( \alpha g_t + \beta (g_t - g_{t-1}) \big), \qquad g_0 = g_1
    $$

    with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        alpha: weight $\alpha$ of the gradient.
        beta: weight $\beta$ of its change since the previous step.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    direction = ScaleByOptimisticGradient


class OptimisticAdam(ma.AbstractRated):
    r"""Adam with extrapolated steps, for min-max problems such as training GANs.

        optimizer = OptimisticAdam(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= \frac{\beta_1 m_t}{1 - \beta_1^{t+1}} + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
        \hat v_t = \frac{v_t}{1 - \beta_2^t} \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon) \\
    w_{t+1} &= w_t - \eta \big( \alpha u_t + \beta (u_t - u_{t-1}) \big), \qquad u_0 = u_1
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. This is optax's `optimistic_adam_v2`;
    optax's older `optimistic_adam(learning_rate, optimism)` is
    `OptimisticAdam(learning_rate, beta=optimism / learning_rate)`. The paper uses Adam without Nesterov momentum: with
    `nesterov=False`, $\hat m_t = m_t / (1 - \beta_1^t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        alpha: weight $\alpha$ of Adam's direction.
        beta: weight $\beta$ of its change since the previous step.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.

    References:
        Daskalakis et al., [Training GANs with Optimism](https://arxiv.org/abs/1711.00141), 2017.
    """

    _call_hint = "The `optimism` of `optax.optimistic_adam` is `beta=optimism / learning_rate`."

    _: ma.KW_ONLY
    alpha: ma.Number = ma.number(1.0)
    beta: ma.Number = ma.number(1.0)
    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    eps_root: ma.Number = ma.number(0.0)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    nesterov: bool = ma.static(True)

    def directions(self):
        return [self._part(ScaleByAdam), self._part(ScaleByOptimisticGradient)]
