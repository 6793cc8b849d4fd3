"""SM3."""

from typing import ClassVar

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.sm3 import ScaleBySM3


class SM3(AbstractOptimizer):
    r"""Adagrad with one sum of squares for each row and column: $w_{t+1} = w_t - \eta u_t$, with $u_t$ of `ScaleBySM3`.

    State: a parameter of shape $n_1 \times \dots \times n_d$ needs $4 (n_1 + \dots + n_d)$ bytes, where Adagrad needs
    4 for each entry, beside the momentum, which is as large as the parameter.

    Args:
        learning_rate: $\eta$.
        momentum: the decay of the momentum.

    References:
        Anil et al., [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150), 2019.
    """

    cites: ClassVar[tuple[str, ...]] = ("anil2019",)

    learning_rate: Hyperparameter = number()
    momentum: Hyperparameter = number(0.9, needs=DECAY)

    def transform(self) -> Chain:
        return Chain(ScaleBySM3(self.momentum), ScaleByLearningRate(self.learning_rate))
