"""Fromage."""

from typing import ClassVar

import jax.numpy as jnp

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.trust_ratio import ScaleByTrustRatio


class Fromage(AbstractOptimizer):
    r"""Gradient descent whose steps are, for each array, a fraction of the norm of its parameters.

    $$
    w_{t+1} = \frac{1}{\sqrt{1 + \eta^2}} \left(w_t - \eta \frac{\|w_t\|}{\|g_t\|} g_t\right)
    $$

    with the norms of one array, each raised to a least value. The first factor keeps the norm of the parameters from
    growing where the gradient is orthogonal to them.

    Args:
        learning_rate: $\eta$, the size of a step in proportion to the parameters.
        min_norm: the least value of both norms.

    References:
        Bernstein et al., [On the distance between two neural networks and the stability of
        learning](https://arxiv.org/abs/2002.03432), 2020.
    """

    cites: ClassVar[tuple[str, ...]] = ("bernstein2020",)

    learning_rate: Hyperparameter = number()
    min_norm: Hyperparameter = number(1e-6, needs=NON_NEGATIVE)

    def transform(self) -> Chain:
        root = jnp.sqrt(1 + self.learning_rate**2)
        shrinkage = -(self.learning_rate**2) / (root * (1 + root))  # 1 / root - 1, without the cancellation
        return Chain(
            ScaleByTrustRatio(self.min_norm),
            ScaleByLearningRate(self.learning_rate / root),
            AddDecayedWeights(shrinkage),
        )
