"""FTRL-Proximal: follow the regularized leader, with parameters that are exactly zero."""

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import safe_power, without_infinities
from .._support.checks import Requirement

NOT_POSITIVE = Requirement(lambda x: x <= 0, "must not be positive")


class ScaleByFTRLState(ma.AbstractState):
    """State of `ScaleByFTRL`: step count, the sums of squared updates, the linear terms, and the last learning rate."""

    sum_of_squares: ma.PyTree = ma.like_params(exact=True, nonnegative=True)
    z: ma.PyTree = ma.like_params(exact=True)
    last_rate: ma.Shared[ma.Scalar] = ma.shared(None, starts=0.0)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractFTRL(ma.AbstractFields):
    r"""The hyperparameters of FTRL.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        learning_rate_power: $p$, the power by which learning rates fall; 0 for a constant rate.
        initial_accumulator_value: initial value $n_0$ of the sum of squares.
        l1: weight $\lambda_1$ of the $L_1$ penalty.
        l2: weight $\lambda_2$ of the $L_2$ penalty, which stabilizes.
        l2_shrinkage: weight $\lambda_s$ of an $L_2$ penalty that is part of the loss.
        beta: $\beta$, added to the power of the sum of squares.
    """

    learning_rate: ma.Number = ma.required_number()
    learning_rate_power: ma.Number = ma.number(-0.5, needs=NOT_POSITIVE)
    initial_accumulator_value: ma.Number = ma.number(0.1, needs=ma.NON_NEGATIVE)
    l1: ma.Number = ma.number(0.0, needs=ma.NON_NEGATIVE)
    l2: ma.Number = ma.number(0.0, needs=ma.NON_NEGATIVE)
    l2_shrinkage: ma.Number = ma.number(0.0, needs=ma.NON_NEGATIVE)
    beta: ma.Number = ma.number(0.0, needs=ma.NON_NEGATIVE)


class ScaleByFTRL(AbstractFTRL, ma.AbstractLeafwise[ScaleByFTRLState]):
    r"""Steps to the minimum of a sum of all gradients and proximal terms, with an $L_1$ penalty: the step of FTRL.

    $$
    \begin{aligned}
    n_t &= n_{t-1} + |g_t|^2, \qquad h_t = (\beta + n_t^{-p}) / \eta_t \\
    z_t &= z_{t-1} + g_t + 2 \lambda_s w_t - (h_t - h_{t-1}) w_t \\
    w_{t+1} &= - \frac{z_t \max(0, 1 - \lambda_1 / |z_t|)}{h_t + 2 \lambda_2},
        \qquad u_t = w_{t+1} - w_t
    \end{aligned}
    $$

    with $z_0 = 0$ and $\eta_0 = \eta_1$. The result is the full step, including learning rate and sign; with a learning
    rate of zero nothing changes. Entries with $|z_t| \le \lambda_1$ are exactly zero. The first step is that of
    parameters which were zero before, and leaves little of other ones.

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

    _why_last = "computes the new parameters from all gradients"
    _negates = True
    needs = ("params",)

    def init_leaf(self, p):
        return ScaleByFTRLState(
            sum_of_squares=ma.second_moment_like(p, ma.at_start(self.initial_accumulator_value)),
            z=jnp.zeros_like(p, ma.at_least_float32(p.dtype)),
        )

    def _prepare(self, count, state):
        del count
        moves = self.learning_rate != 0
        rate = jnp.where(moves, self.learning_rate, 1)
        last = jnp.where(moves, self.learning_rate, state.last_rate)
        return moves, rate, jnp.where(state.last_rate == 0, rate, state.last_rate), last

    def share(self, now):
        return {"last_rate": now[-1]}

    def update_leaf(self, now, g, s, p):
        moves, rate, last_rate, _ = now
        # The root of an infinite sum would be infinite too, and the new parameter its quotient.
        squares = without_infinities(s.sum_of_squares + ma.abs_sq(g))
        h = (self.beta + safe_power(squares, -self.learning_rate_power)) / rate
        last_h = (self.beta + safe_power(s.sum_of_squares, -self.learning_rate_power)) / last_rate
        z = s.z + (g + (2 * self.l2_shrinkage - (h - last_h)) * p)
        shrunk = jnp.maximum(1 - ma.ratio(self.l1, jnp.abs(z)), 0) * z
        w = -ma.ratio(shrunk, h + 2 * self.l2)  # without a gradient so far, both may be zero
        squares, z = jnp.where(moves, squares, s.sum_of_squares), jnp.where(moves, z, s.z)
        return jnp.where(moves, w - p, 0), ScaleByFTRLState(sum_of_squares=squares, z=z)


class FTRL(AbstractFTRL, ma.AbstractOptimizer):
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

    learning_rate: ma.Number = ma.number(1e-3)

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByFTRL))
