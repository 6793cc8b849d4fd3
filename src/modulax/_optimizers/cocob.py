"""The optimizer COCOB."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._transforms.cocob import ScaleByCOCOB
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import Scale


class COCOB(AbstractOptimizer):
    r"""Gradient descent by coin betting, which needs no learning rate.

        optimizer = COCOB()

    $$
    \begin{aligned}
    g_t &= \eta\, (\nabla f(w_t) + \lambda w_t) \\
    L_t &= \max(L_{t-1}, |g_t|), \qquad G_t = G_{t-1} + |g_t| \\
    R_t &= \max(R_{t-1} - g_t (w_t - w_0), 0), \qquad \theta_t = \theta_{t-1} - g_t \\
    w_{t+1} &= w_0 + \frac{\theta_t}{L_t \max(G_t + L_t, \alpha L_t)} (L_t + R_t)
    \end{aligned}
    $$

    in each coordinate, with $w_0$ the initial parameters, $L$ started from `eps`, and $G$, $R$ and $\theta$ from zero.

    Args:
        learning_rate: factor $\eta$ of the gradients, a number or a schedule; a constant has almost no effect on the
            steps.
        alpha: $\alpha$, which makes the first bets smaller.
        eps: initial value $L_0$ of the largest gradient.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Orabona and Tommasi, [Training Deep Networks without Learning Rates Through Coin
        Betting](https://arxiv.org/abs/1705.07795), 2017.
    """

    needs: ClassVar[tuple[str, ...]] = ("real",)

    learning_rate: Hyperparameter = number(1.0)
    alpha: Hyperparameter = number(100.0)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay, self.mask),
            Scale(self.learning_rate),
            ScaleByCOCOB(self.alpha, self.eps),
        )
