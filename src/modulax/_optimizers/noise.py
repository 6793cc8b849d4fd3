"""The optimizer NoisySGD: gradient descent with gradient noise."""

from typing import Any

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._support.keys import key
from .._transforms.noise import AddNoise
from .._transforms.scaling import ScaleByLearningRate


class NoisySGD(AbstractOptimizer):
    r"""SGD with decreasing Gaussian noise added to the gradient, for very deep networks that are hard to train.

        optimizer = NoisySGD(0.1, eta=0.3)

    $$
    \begin{aligned}
    \sigma_t^2 &= \eta / (1 + t)^\gamma, \qquad z_t \sim \mathcal{N}(0, 1) \\
    w_{t+1} &= w_t - \alpha (g_t + \sigma_t z_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and independent noise in every coordinate.

    Args:
        learning_rate: learning rate $\alpha$, a number or a schedule.
        eta: variance $\eta$ of the noise at the first step.
        gamma: exponent $\gamma$ of the decrease of the variance.
        key: a seed, or a JAX key, for the noise.

    References:
        Neelakantan et al., [Adding Gradient Noise Improves Learning for Very Deep
        Networks](https://arxiv.org/abs/1511.06807), 2015.
    """

    learning_rate: Hyperparameter = required_number()
    eta: Hyperparameter = number(0.01, needs=NON_NEGATIVE)
    gamma: Hyperparameter = number(0.55)
    key: Any = key()

    def transform(self) -> Chain:
        return Chain(AddNoise(self.eta, self.gamma, self.key), ScaleByLearningRate(self.learning_rate))
