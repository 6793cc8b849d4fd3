"""LAMB."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.trust_ratio import ScaleByTrustRatio


class LAMB(AbstractOptimizer):
    r"""AdamW whose steps are, for each array, a fraction of the norm of its parameters.

    $$
    w_{t+1} = w_t - \eta \frac{\|w_t\|}{\|u_t + \lambda w_t\|} (u_t + \lambda w_t)
    $$

    with $u_t$ of `ScaleByAdam` and the norms of one array. Where one of them is zero, the ratio is 1.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        weight_decay: $\lambda$.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        You et al., [Large Batch Optimization for Deep Learning: Training BERT in 76
        minutes](https://arxiv.org/abs/1904.00962), 2019.
    """

    cites: ClassVar[tuple[str, ...]] = ("you2019",)

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByTrustRatio(),
            ScaleByLearningRate(self.learning_rate),
        )
