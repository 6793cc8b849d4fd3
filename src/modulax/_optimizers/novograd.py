"""The optimizer NovoGrad."""

from dataclasses import KW_ONLY

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.novograd import ScaleByNovoGrad
from .._transforms.scaling import ScaleByLearningRate


class NovoGrad(AbstractOptimizer):
    r"""Adam with one second moment per array and half the memory: a momentum of layer-wise normalized gradients.

        optimizer = NovoGrad(0.01, b1=0.95, b2=0.98, weight_decay=1e-3)

    $$
    \begin{aligned}
    v_1 &= \|g_1\|^2, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \|g_t\|^2 \\
    m_t &= \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t, \qquad m_0 = 0 \\
    w_{t+1} &= w_t - \eta\, m_t
    \end{aligned}
    $$

    for each array, with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$. The momentum is a sum, not an average, so
    steps become $1 / (1 - \beta_1)$ times as long as without it.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment. The default is that of optax; the paper's is 0.98.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate; the decay is part of the
            momentum.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.25, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)

    def transform(self) -> Chain:
        return Chain(
            ScaleByNovoGrad(self.b1, self.b2, self.eps, self.eps_root, self.weight_decay),
            ScaleByLearningRate(self.learning_rate),
        )
