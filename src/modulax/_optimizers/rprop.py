"""Rprop."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.types import Follow
from .._transforms.rprop import ScaleByRprop
from .._transforms.scaling import Scale


class Rprop(AbstractOptimizer):
    """Resilient backpropagation: a step size for every coordinate, led by the sign of the gradient alone.

    It is for gradients of the whole data set: noise changes signs. See `ScaleByRprop` for the equations.

    Args:
        learning_rate: the step size at the start. Of a schedule only the first number is used.
        eta_minus: the factor of the step size where the sign changed.
        eta_plus: the factor where it did not.
        min_step_size: the smallest step.
        max_step_size: the largest step.
        follow: `"paper"`, or `"optax"`, whose steps are one late.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    learning_rate: Hyperparameter = number()
    eta_minus: Hyperparameter = number(0.5)
    eta_plus: Hyperparameter = number(1.2)
    min_step_size: Hyperparameter = number(1e-6)
    max_step_size: Hyperparameter = number(50.0)
    follow: Follow = followed()

    def transform(self) -> Chain:
        sizes = (self.eta_minus, self.eta_plus, self.min_step_size, self.max_step_size)
        return Chain(ScaleByRprop(self.learning_rate, *sizes, follow=self.follow), Scale(-1.0))
