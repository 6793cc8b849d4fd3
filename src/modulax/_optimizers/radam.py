"""The optimizer RAdam."""

from dataclasses import KW_ONLY

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.radam import ScaleByRAdam
from .._transforms.scaling import ScaleByLearningRate


class RAdam(AbstractOptimizer):
    r"""Adam with an automatic learning rate warm-up: rectifies the variance of its first steps.

        optimizer = RAdam(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \rho_\infty &= \frac{2}{1 - \beta_2} - 1, \qquad
    \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t} \\
    r_t &= \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\, \rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\, \rho_t}} \\
    u_t &= r_t \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \quad\text{if } \rho_t \ge \theta \text{ and } \rho_t > 4, \text{ otherwise}\quad \hat m_t \\
    w_{t+1} &= w_t - \eta u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. With `nesterov`,
    $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        threshold: $\theta$, smallest length $\rho_t$ of the average for which the step is adaptive.
        nesterov: whether to use Nesterov momentum.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    threshold: Hyperparameter = number(5.0)
    nesterov: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        return Chain(
            ScaleByRAdam(self.b1, self.b2, self.eps, self.eps_root, self.threshold, nesterov=self.nesterov),
            ScaleByLearningRate(self.learning_rate),
        )
