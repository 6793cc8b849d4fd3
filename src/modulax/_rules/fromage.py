"""Fromage: steps relative to the norm of each array."""

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.trust_ratio import ScaleByTrustRatio


class Fromage(ma.AbstractOptimizer):
    r"""Gradient descent with steps relative to the norm of each array, so that one learning rate suits all layers.

        optimizer = Fromage(0.01)

    $$
    w_{t+1} = \frac{1}{\sqrt{1 + \eta^2}} \left(w_t - \eta \frac{\|w_t\|}{\|g_t\|} g_t\right)
    $$

    for each array, with $g_t$ the gradient at $w_t$ and both norms raised to at least `min_norm`. The first factor
    prevents the weights from growing when the gradient is orthogonal to them.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule: the size of a step relative to the weights.
        min_norm: smallest value of both norms.

    References:
        Bernstein et al., [On the distance between two neural networks and the stability of
        learning](https://arxiv.org/abs/2002.03432), 2020.
    """

    learning_rate: ma.Number = ma.required_number()
    min_norm: ma.Number = ma.number(1e-6, needs=ma.NON_NEGATIVE)

    def transform(self) -> ma.Chain:
        root = jnp.sqrt(1 + self.learning_rate**2)
        shrinkage = -(self.learning_rate**2) / (root * (1 + root))  # 1 / root - 1, without cancellation
        return ma.Chain(
            ScaleByTrustRatio(self.min_norm),
            ma.ScaleByLearningRate(self.learning_rate / root),
            ma.AddDecayedWeights(shrinkage),
        )
