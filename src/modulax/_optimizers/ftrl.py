"""The optimizer FTRL."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.ftrl import NOT_POSITIVE, ScaleByFTRL


class FTRL(AbstractOptimizer):
    r"""Follow the regularized leader (FTRL-Proximal), for large linear models with few nonzero weights.

        optimizer = FTRL(0.1, l1=1e-3)

    $$
    \begin{aligned}
    n_t &= n_{t-1} + |g_t|^2, \qquad h_t = (\beta + n_t^{-p}) / \eta_t \\
    z_t &= z_{t-1} + g_t + 2 \lambda_s w_t - (h_t - h_{t-1}) w_t \\
    w_{t+1} &= - \frac{z_t \max(0, 1 - \lambda_1 / |z_t|)}{h_t + 2 \lambda_2}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $z_0 = 0$ and $\eta_0 = \eta_1$. Weights with $|z_t| \le \lambda_1$ are exactly
    zero. Begin with parameters of zero: as in Keras, the first step leaves little of other ones.

    This is the form of TensorFlow and Keras. In the paper, $p = -1/2$, $n_0 = 0$, and $\lambda_2$ stands in place of
    $2 \lambda_2$. With a schedule, Keras has $\eta_t$ in $h_{t-1}$ too, so that all parameters shrink with the rate.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        learning_rate_power: $p$, the power by which learning rates fall; 0 for a constant rate.
        initial_accumulator_value: initial value $n_0$ of the sum of squares.
        l1: weight $\lambda_1$ of the $L_1$ penalty.
        l2: weight $\lambda_2$ of the $L_2$ penalty, which stabilizes.
        l2_shrinkage: weight $\lambda_s$ of an $L_2$ penalty that is part of the loss.
        beta: $\beta$, added to the power of the sum of squares.

    References:
        McMahan et al., [Ad Click Prediction: a View from the Trenches](https://doi.org/10.1145/2487575.2488200), 2013.
    """

    learning_rate: Hyperparameter = number(1e-3)
    learning_rate_power: Hyperparameter = number(-0.5, needs=NOT_POSITIVE)
    initial_accumulator_value: Hyperparameter = number(0.1, needs=NON_NEGATIVE)
    l1: Hyperparameter = number(0.0, needs=NON_NEGATIVE)
    l2: Hyperparameter = number(0.0, needs=NON_NEGATIVE)
    l2_shrinkage: Hyperparameter = number(0.0, needs=NON_NEGATIVE)
    beta: Hyperparameter = number(0.0, needs=NON_NEGATIVE)

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByFTRL))
