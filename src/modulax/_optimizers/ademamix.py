"""AdEMAMix and its simplified form."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.ademamix import ScaleByAdEMAMix, ScaleBySimplifiedAdEMAMix
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class AdEMAMix(AbstractOptimizer):
    r"""AdamW with a second, slow mean of the gradients: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    $u_t$ is that of `ScaleByAdEMAMix`, whose `alpha` is 6 by default where it is 5 here, as in optax. The slow mean
    pays in long runs; the paper raises `alpha` and `b3` by schedules over the first part.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the fast mean.
        b2: the decay of the mean square.
        b3: the decay of the slow mean.
        alpha: the weight of the slow mean.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of both means; by default the parameter's.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    b3: Hyperparameter = number(0.9999, needs=DECAY)
    alpha: Hyperparameter = number(5.0)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdEMAMix(self.b1, self.b2, self.b3, self.alpha, self.eps, self.eps_root, self.mu_dtype),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class SimplifiedAdEMAMix(AbstractOptimizer):
    r"""AdEMAMix with one momentum: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, $u_t$ of `ScaleBySimplifiedAdEMAMix`.

    The momentum is a sum, not a mean, so it wants a learning rate about $1 - \beta_1$ times Adam's.

    Args:
        learning_rate: $\eta$.
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay of the mean square.
        alpha: the weight of the newest gradient beside the momentum.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.99, needs=DECAY)
    b2: Hyperparameter = number(0.95, needs=DECAY)
    alpha: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleBySimplifiedAdEMAMix(self.b1, self.b2, self.alpha, self.eps, self.eps_root),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
