"""Prodigy."""

from typing import Any, ClassVar

import equinox as eqx

from .._protocol.fields import Hyperparameter, followed, number, numbers
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, POSITIVE
from .._support.types import Follow
from .._transforms.prodigy import ScaleByProdigy
from .._transforms.step_with_decay import StepWithDecay


class Prodigy(AbstractOptimizer):
    r"""Adam with decoupled weight decay and a step size found by Prodigy. See `ScaleByProdigy` for the equations.

    $w_{t+1} = w_t - u_t - \eta_t d_t \lambda w_t$.

    Args:
        learning_rate: $\eta$, a factor of the step size; a schedule that ends at zero from 1.0 is recommended.
        betas: the decays of the mean and of the mean square.
        beta3: the decay of the sums behind the estimate; by default the root of the second of `betas`.
        eps: added to the root of the mean square, times the estimate.
        estim_lr0: the first estimate of the distance to the solution, which should be too small.
        estim_lr_coef: a factor of the estimates, the number to tune if there must be one.
        weight_decay: $\lambda$, which is multiplied by the step size.
        safeguard_warmup: whether to leave the learning rate out of the denominator of the estimate, for one that warms
            up.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"`, or `"optax"` for its bias corrections.

    References:
        Mishchenko and Defazio, [Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner](https://arxiv.org/abs/2306.06101), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("mishchenko2023",)

    learning_rate: Hyperparameter = number(1.0)
    betas: tuple[Hyperparameter, Hyperparameter] = numbers((0.9, 0.999), needs=DECAY)
    beta3: Hyperparameter | None = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    estim_lr_coef: Hyperparameter = number(1.0)
    weight_decay: Hyperparameter = number(0.0)
    safeguard_warmup: bool = eqx.field(static=True, default=False)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> StepWithDecay:
        rule = ScaleByProdigy(
            self.learning_rate,
            *self.betas,
            self.beta3,
            self.eps,
            self.estim_lr0,
            self.estim_lr_coef,
            self.safeguard_warmup,
            follow=self.follow,
        )
        return StepWithDecay(rule, self.weight_decay, self.mask)
