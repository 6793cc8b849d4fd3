"""Adam and others on gradients of low rank."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.container import part
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import AT_LEAST_ONE
from .._support.types import Follow
from .._transforms.adam import ScaleByAdam
from .._transforms.galore import GaLoreDimensionNumbers, ScaleByGaLore, adam_unless_given
from .._transforms.matrices import matrices_as
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class GaLore(AbstractOptimizer):
    r"""Adam, or another transform, on gradients of low rank, so that its state is small.

    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, with $u_t$ of `ScaleByGaLore`.

    Args:
        learning_rate: $\eta$.
        rank: how many directions of each matrix are kept.
        update_proj_gap: the number of steps after which they are chosen anew.
        scale: a factor for the updates of matrices; the paper takes 0.25.
        base_optimizer: the transform that is run in them, without learning rate; by default `ScaleByAdam()`.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default those of two axes.
        follow: which side of a matrix is projected: the smaller one, `"paper"`, or the larger, `"optax"`.

    References:
        Zhao et al., [GaLore: Memory-Efficient LLM Training by Gradient Low-Rank
        Projection](https://arxiv.org/abs/2403.03507), 2024.
    """

    cites: ClassVar[tuple[str, ...]] = ("zhao2024",)

    learning_rate: Hyperparameter = number()
    rank: int = eqx.field(static=True, default=128)
    update_proj_gap: Hyperparameter = number(200, needs=AT_LEAST_ONE)
    scale: Hyperparameter = number(1.0)
    base_optimizer: AbstractTransform = part(default_factory=ScaleByAdam, converter=adam_unless_given)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(GaLoreDimensionNumbers))
    _: KW_ONLY
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(
            ScaleByGaLore(
                self.rank,
                self.update_proj_gap,
                self.scale,
                self.base_optimizer,
                self.weight_dimension_numbers,
                follow=self.follow,
            ),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
