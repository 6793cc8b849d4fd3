"""The optimizer MADGRAD."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.madgrad import ScaleByMADGRAD
from .._transforms.regularization import AddDecayedWeights


class MADGRAD(AbstractOptimizer):
    r"""Adagrad with dual averaging and momentum, also for problems on which SGD generalizes better than Adam.

        optimizer = MADGRAD(1e-2, momentum=0.9)

    $$
    \begin{aligned}
    g_k &= \nabla f(w_k) + \lambda w_k \\
    \lambda_k &= (\eta + \varepsilon) \sqrt{k + 1} \\
    s_{k+1} &= s_k + \lambda_k g_k, \qquad v_{k+1} = v_k + \lambda_k |g_k|^2 \\
    z_{k+1} &= w_0 - s_{k+1} / (\sqrt[3]{v_{k+1}} + \varepsilon) \\
    w_{k+1} &= \mu w_k + (1 - \mu) z_{k+1}
    \end{aligned}
    $$

    with $k = 0, 1, \dots$, $s_0 = v_0 = 0$ and $w_0$ the initial parameters. $\lambda_k$ is the weight of a gradient,
    $\lambda$ that of the $L_2$ penalty.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; the paper's $c$ is $1 - \mu$.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        eps: $\varepsilon$, added to the denominator and to the learning rate.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021.
    """

    learning_rate: Hyperparameter = required_number()
    momentum: Hyperparameter = number(0.9, needs=DECAY)
    weight_decay: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-6)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay),
            ScaleByMADGRAD(self.learning_rate, self.momentum, self.eps),
        )
