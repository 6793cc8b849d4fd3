"""NovoGrad."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.novograd import ScaleByNovoGrad
from .._transforms.scaling import ScaleByLearningRate


class NovoGrad(AbstractOptimizer):
    """Momentum of gradients that are divided, array by array, by their typical norm. See `ScaleByNovoGrad`.

    Args:
        learning_rate: the step size.
        b1: the decay of the momentum.
        b2: the decay of the squared norm; the default is optax's, the paper's is 0.98.
        eps: added to the norm.
        eps_root: added to the squared norm inside the root.
        weight_decay: the rate of decay, which is part of the momentum.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.25, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)

    def transform(self) -> Chain:
        return Chain(
            ScaleByNovoGrad(self.b1, self.b2, self.eps, self.eps_root, self.weight_decay),
            ScaleByLearningRate(self.learning_rate),
        )
