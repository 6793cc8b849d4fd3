"""DoG and DoWG."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._transforms.dog import ScaleByDoG, ScaleByDoWG, as_initial_step, check_initial_step
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class DoG(AbstractOptimizer):
    r"""Gradient descent with distance over gradients as its learning rate. See `ScaleByDoG` for the equations.

    Args:
        learning_rate: a factor of the step size; a schedule may bring it to zero.
        init_step: how long the first step is: `("heuristic", 1e-6)`, `("distance", r)` or `("learning_rate", eta)`, as
            in `ScaleByDoG`.
        eps: added to the sum of squares.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("ivgi2023",)

    learning_rate: Hyperparameter = number(1.0)
    init_step: Any = eqx.field(default=("heuristic", 1e-6), converter=as_initial_step)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def check(self) -> None:
        check_initial_step(self, self.init_step)

    def transform(self) -> Chain:
        return _penalized(self.weight_decay, self.mask, ScaleByDoG(self.init_step, self.eps), self.learning_rate)


class DoWG(AbstractOptimizer):
    r"""Gradient descent with distance over weighted gradients as its learning rate. See `ScaleByDoWG`.

    Args:
        learning_rate: a factor of the step size; a schedule may bring it to zero.
        init_estim_sq_dist: the squared distance to the solution that is assumed at first; by default `eps`.
        eps: added to the root of the sum of squares.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Khaled, Mishchenko and Jin, [DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
        Method](https://arxiv.org/abs/2305.16284), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("khaled2023",)

    learning_rate: Hyperparameter = number(1.0)
    init_estim_sq_dist: Hyperparameter | None = number(None, optional=True)
    eps: Hyperparameter = number(1e-4)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        scaling = ScaleByDoWG(self.init_estim_sq_dist, self.eps)
        return _penalized(self.weight_decay, self.mask, scaling, self.learning_rate)


def _penalized(weight_decay: Any, mask: Any, scaling: AbstractTransform, learning_rate: Any) -> Chain:
    parts = [] if weight_decay is None else [AddDecayedWeights(weight_decay, mask)]
    return Chain(*parts, scaling, ScaleByLearningRate(learning_rate))
