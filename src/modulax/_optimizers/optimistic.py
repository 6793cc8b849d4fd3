"""The optimizers OptimisticGradientDescent and OptimisticAdam, for games and other min-max problems."""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.optimistic import ScaleByOptimisticGradient
from .._transforms.scaling import ScaleByLearningRate


class OptimisticGradientDescent(AbstractOptimizer):
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

    learning_rate: Hyperparameter = required_number()
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)

    def transform(self) -> Chain:
        return Chain(ScaleByOptimisticGradient(self.alpha, self.beta), ScaleByLearningRate(self.learning_rate))


class OptimisticAdam(AbstractOptimizer):
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

    _call_hint: ClassVar[str] = "The `optimism` of `optax.optimistic_adam` is `beta=optimism / learning_rate`."

    learning_rate: Hyperparameter = required_number()
    _: KW_ONLY
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            ScaleByOptimisticGradient(self.alpha, self.beta),
            ScaleByLearningRate(self.learning_rate),
        )
