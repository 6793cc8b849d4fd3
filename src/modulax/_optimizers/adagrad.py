"""The optimizer Adagrad."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.adagrad import ScaleByRSS
from .._transforms.scaling import ScaleByLearningRate


class Adagrad(AbstractOptimizer):
    r"""Adaptive gradient descent for sparse gradients: divides by the root of the sum of squared gradients.

        optimizer = Adagrad(0.01)

    $$
    \begin{aligned}
    s_t &= s_{t-1} + |g_t|^2 \\
    w_{t+1} &= w_t - \eta\, g_t / \sqrt{s_t + \varepsilon}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$. Steps get shorter as the sum grows; coordinates with rare or small gradients keep
    long ones.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        initial_accumulator_value: initial value $s_0$ of the sum of squares.
        eps: $\varepsilon$, added to the sum of squares inside the root.

    References:
        Duchi, Hazan and Singer, [Adaptive Subgradient Methods for Online Learning and Stochastic
        Optimization](https://jmlr.org/papers/v12/duchi11a.html), 2011.
    """

    learning_rate: Hyperparameter = required_number()
    initial_accumulator_value: Hyperparameter = number(0.1, needs=NON_NEGATIVE)
    eps: Hyperparameter = number(1e-7)

    def transform(self) -> Chain:
        return Chain(
            ScaleByRSS(self.initial_accumulator_value, self.eps),
            ScaleByLearningRate(self.learning_rate),
        )
