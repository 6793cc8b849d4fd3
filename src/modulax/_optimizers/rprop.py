"""The optimizer Rprop."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.types import Follow
from .._transforms.rprop import ScaleByRprop
from .._transforms.scaling import Scale


class Rprop(AbstractOptimizer):
    r"""Resilient backpropagation: one step size per coordinate, adapted by the sign of the gradient; for full batches.

        optimizer = Rprop(0.01)

    $$
    \begin{aligned}
    \Delta_t &= \begin{cases}
        \min(\eta_+ \Delta_{t-1}, \Delta_\text{max}) & \text{if } g_t u_{t-1} > 0 \\
        \max(\eta_- \Delta_{t-1}, \Delta_\text{min}) & \text{if } g_t u_{t-1} < 0 \\
        \Delta_{t-1} & \text{otherwise}
    \end{cases} \\
    u_t &= \begin{cases} 0 & \text{if } g_t u_{t-1} < 0 \\
        \Delta_t \operatorname{sign}(g_t) & \text{otherwise} \end{cases} \\
    w_{t+1} &= w_t - u_t
    \end{aligned}
    $$

    in each coordinate, with $g_t$ the gradient at $w_t$ and $u_0 = 0$. This is iRprop⁻ of Igel and Hüsken. Gradients
    should be those of all data, because noise changes signs.

    Args:
        learning_rate: initial step size $\Delta_0$; only the first value of a schedule is used.
        eta_minus: factor $\eta_-$ of the step size when the sign changes.
        eta_plus: factor $\eta_+$ of the step size when the sign stays the same.
        min_step_size: smallest step size $\Delta_\text{min}$.
        max_step_size: largest step size $\Delta_\text{max}$.
        follow: `"paper"`, or `"optax"`, whose steps are one late.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    learning_rate: Hyperparameter = required_number()
    eta_minus: Hyperparameter = number(0.5)
    eta_plus: Hyperparameter = number(1.2)
    min_step_size: Hyperparameter = number(1e-6)
    max_step_size: Hyperparameter = number(50.0)
    follow: Follow = followed()

    def transform(self) -> Chain:
        sizes = (self.eta_minus, self.eta_plus, self.min_step_size, self.max_step_size)
        return Chain(ScaleByRprop(self.learning_rate, *sizes, follow=self.follow), Scale(-1.0))
