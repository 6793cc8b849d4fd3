"""The optimizer Adadelta."""

from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adadelta import ScaleByAdadelta
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class Adadelta(AbstractOptimizer):
    r"""Adaptive gradient descent that derives its step size from past updates, so that the learning rate can stay at 1.

        optimizer = Adadelta()

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    E_t &= \rho E_{t-1} + (1 - \rho) |g_t|^2 \\
    u_t &= \frac{\sqrt{X_{t-1} + \varepsilon}}{\sqrt{E_t + \varepsilon}}\, g_t \\
    X_t &= \rho X_{t-1} + (1 - \rho) |u_t|^2 \\
    w_{t+1} &= w_t - \eta u_t
    \end{aligned}
    $$

    with $E_0 = X_0 = 0$. The weight decay is an $L_2$ penalty, as in torch: it is added to the gradient before the
    scaling.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule. The paper has none, which is $\eta = 1$.
        rho: exponential decay rate $\rho$ of both mean squares.
        eps: $\varepsilon$, added inside both roots; it also sets the size of the first steps.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Zeiler, [ADADELTA: An Adaptive Learning Rate Method](https://arxiv.org/abs/1212.5701), 2012.
    """

    learning_rate: Hyperparameter = number(1.0)
    rho: Hyperparameter = number(0.9, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByAdadelta(self.rho, self.eps),
            ScaleByLearningRate(self.learning_rate),
        )
