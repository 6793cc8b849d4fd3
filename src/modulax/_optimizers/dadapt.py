"""D-Adaptation for AdamW."""

from typing import ClassVar

from .._protocol.fields import Hyperparameter, followed, number, numbers
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, POSITIVE
from .._support.types import Follow
from .._transforms.dadapt import ScaleByDAdaptAdam
from .._transforms.step_with_decay import StepWithDecay


class DAdaptAdamW(AbstractOptimizer):
    r"""Adam with decoupled weight decay and a step size found by D-Adaptation. See `ScaleByDAdaptAdam`.

    $w_{t+1} = w_t - u_t - \eta_t d_t \lambda w_t$.

    Args:
        learning_rate: $\eta$, a factor of the step size; a schedule that ends at zero from 1.0 is recommended.
        betas: the decays of the mean and of the mean square.
        eps: added to the root of the mean square.
        estim_lr0: the first estimate of the distance to the solution, which should be too small.
        weight_decay: $\lambda$, which is multiplied by the step size.
        follow: `"paper"`, or `"optax"` for its bias corrections and weights.

    References:
        Defazio and Mishchenko, [Learning-Rate-Free Learning by D-Adaptation](https://arxiv.org/abs/2301.07733), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("defazio2023",)

    learning_rate: Hyperparameter = number(1.0)
    betas: tuple[Hyperparameter, Hyperparameter] = numbers((0.9, 0.999), needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    weight_decay: Hyperparameter = number(0.0)
    follow: Follow = followed()

    def transform(self) -> StepWithDecay:
        b1, b2 = self.betas
        rule = ScaleByDAdaptAdam(self.learning_rate, b1, b2, self.eps, self.estim_lr0, follow=self.follow)
        return StepWithDecay(rule, self.weight_decay)
