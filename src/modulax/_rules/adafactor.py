"""Adafactor: a second moment that is stored as the means of its rows and columns."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import authoring as ma
from .._support.arithmetic import mean, real_dtype
from .._support.checks import NEVER_NEGATIVE
from .._support.tracing import call_user
from .._transforms.clipping import ClipByBlockRMS
from .._transforms.momentum import Ema
from .._transforms.param_block import ScaleByParamBlockRMS
from .sm3 import inverse_root


def power_decay(step: Any, exponent: Any) -> Any:
    """Adafactor's decay rate of the second moment, $1 - t^{-c}$, where $t$ is `step + 1` and $c$ is `exponent`."""
    return 1 - (step + 1) ** (-exponent)


def factors_like(p: ma.Array, axes: tuple[int, int]) -> tuple[ma.Array, ma.Array]:
    """Zeros for the means over each of two axes."""
    dtype = ma.at_least_float32(real_dtype(p.dtype))
    row, col = (jnp.zeros(np.delete(p.shape, axis), dtype) for axis in axes)
    return row, col


def divided_by_factors(
    x: ma.Array, square: ma.Array, row: ma.Array, col: ma.Array, axes: tuple[int, int], decay: Any
) -> tuple[ma.Array, ma.Array, ma.Array]:
    """Average the means of squares over each of two axes, and divide an array by the root of what they approximate.

    Args:
        x: the array to divide.
        square: the squares of this step.
        row: the average of the means over the first axis, before this step.
        col: the average of the means over the second axis, before this step.
        axes: the two axes.
        decay: exponential decay rate of the averages.

    Returns:
        the quotient, and the two averages.
    """
    first, second = axes
    row = ma.moment(decay, row, mean(square, first))
    col = ma.moment(decay, col, mean(square, second))
    whole = mean(row, second - (first < second), keepdims=True)
    # If squares overflow, so do all means. Dividing by the column means alone gives a small update instead of NaN.
    is_fine = jnp.isfinite(whole)
    relative = jnp.where(is_fine, ma.safe_sqrt(jnp.where(is_fine, whole, 1)) * inverse_root(row), 1)
    # One factor after the other, because their product could overflow.
    return jnp.expand_dims(relative, first) * (jnp.expand_dims(inverse_root(col), second) * x), row, col


class FactoredState(ma.AbstractState):
    """State of `ScaleByFactoredRMS`: step count, and the second moment, by rows and columns or in full.

    `v` is None for factored leaves, `v_row` and `v_col` are None for all others.
    """

    optax_fields = ("count", "v_row", "v_col", "v")

    v_row: ma.PyTree = ma.like_params(nonnegative=True)
    v_col: ma.PyTree = ma.like_params(nonnegative=True)
    v: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class ScaleByFactoredRMS(ma.AbstractLeafwise[FactoredState]):
    r"""Divides updates by their root mean square, stored as row and column means: the direction of Adafactor.

    For a matrix of $n \times m$ entries:

    $$
    \begin{aligned}
    \beta_t &= 1 - t^{-c} \\
    R_t &= \beta_t R_{t-1} + (1 - \beta_t) \tfrac{1}{m} \textstyle\sum_j (|g_t|^2 + \varepsilon)_{ij} \\
    C_t &= \beta_t C_{t-1} + (1 - \beta_t) \tfrac{1}{n} \textstyle\sum_i (|g_t|^2 + \varepsilon)_{ij} \\
    u_t &= g_t / \sqrt{R_t C_t / \operatorname{mean}(R_t)}
    \end{aligned}
    $$

    In an array with more axes, the two longest ones form the matrices, one for each index of the other axes. Where the
    second longest axis is shorter than `min_dim_size_to_factor`, the array isn't factored:
    $V_t = \beta_t V_{t-1} + (1 - \beta_t) (|g_t|^2 + \varepsilon)$ is stored in full, and $u_t = g_t / \sqrt{V_t}$.

    State: $4 (n + m)$ bytes for a factored matrix, 4 bytes per entry for any other array, in float32.

    Args:
        factored: whether to factor the second moment; if False, it is stored in full for every array.
        decay_rate: exponent $c$ of the decay rate $\beta_t$.
        step_offset: number of earlier steps, subtracted from the step count, for fine-tuning that continues a count. Up
            to that step, $\beta_t$ is that of the first step.
        min_dim_size_to_factor: smallest length of the second longest axis for which an array is factored.
        epsilon: $\varepsilon$, added to the squared updates.
        decay_rate_fn: function that returns $\beta_t$, given the number of steps before this one and `decay_rate`. With
            an upper bound below 1, as in Zhai et al., old gradients are still forgotten in long runs.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018;
        Zhai et al., [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), 2021.
    """

    factored: bool = ma.static(True)
    decay_rate: ma.Number = ma.number(0.8)
    step_offset: ma.Number = ma.number(0)
    min_dim_size_to_factor: int = ma.static(128)
    epsilon: ma.Number = ma.number(1e-30)
    decay_rate_fn: Callable[[Any, Any], Any] = ma.static(power_decay)

    def init_leaf(self, p):
        axes = self.axes(p.shape)
        if axes is None:
            # None and not an array without elements, which orbax does not store.
            return FactoredState(v_row=None, v_col=None, v=ma.second_moment_like(p))
        row, col = factors_like(p, axes)
        return FactoredState(v_row=row, v_col=col, v=None)

    def axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The axes averaged over in `v_row` and `v_col`, the longest and the second longest; None if not factored."""
        if not self.factored or len(shape) < 2:
            return None
        *_, second, first = np.argsort(shape, kind="stable")
        return (int(first), int(second)) if shape[second] >= max(self.min_dim_size_to_factor, 1) else None

    def prepare(self, count):
        # A fresh state starts its count at zero even if there is an offset, and a negative step would give NaN.
        return call_user(self.decay_rate_fn, jnp.maximum(count - self.step_offset, 0), self.decay_rate)

    def update_leaf(self, now, g, s, p):
        del p
        square = self.epsilon + ma.abs_sq(g)
        axes = self.axes(g.shape)
        if axes is None:
            v = ma.moment(now, s.v, square)
            return inverse_root(v) * g, FactoredState(v_row=None, v_col=None, v=v)
        u, row, col = divided_by_factors(g, square, s.v_row, s.v_col, axes, now)
        return u, FactoredState(v_row=row, v_col=col, v=None)


def relative_step(step: Any) -> Any:
    r"""Adafactor's default learning rate, $\min(10^{-2}, 1 / \sqrt t)$, where $t$ is `step + 1`."""
    return jnp.minimum(1e-2, 1 / jnp.sqrt(1 + jnp.asarray(step, ma.default_float())))


class Adafactor(ma.AbstractOptimizer):
    r"""Adam-like optimizer with sublinear memory: stores only row and column means of the second moment.

        optimizer = Adafactor()  # the relative steps of the paper; or Adafactor(1e-2)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    \beta_t &= 1 - t^{-c} \\
    R_t &= \beta_t R_{t-1} + (1 - \beta_t) \tfrac{1}{m} \textstyle\sum_j (|g_t|^2 + \varepsilon)_{ij} \\
    C_t &= \beta_t C_{t-1} + (1 - \beta_t) \tfrac{1}{n} \textstyle\sum_i (|g_t|^2 + \varepsilon)_{ij} \\
    u_t &= g_t / \sqrt{R_t C_t / \operatorname{mean}(R_t)} \\
    \hat u_t &= u_t / \max(1, \operatorname{RMS}(u_t) / d) \\
    s_t &= \eta_t \max(10^{-3}, \operatorname{RMS}(w_t))\, \hat u_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) s_t \\
    w_{t+1} &= w_t - m_t - \lambda w_t
    \end{aligned}
    $$

    for a matrix of $n \times m$ entries, with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$. Without `momentum`,
    which is the default, $m_t = s_t$. Arrays that aren't factored, see `min_dim_size_to_factor`, use
    $u_t = g_t / \sqrt{V_t}$ with $V_t = \beta_t V_{t-1} + (1 - \beta_t) (|g_t|^2 + \varepsilon)$. The weight decay
    isn't multiplied by the learning rate.

    State: $4 (n + m)$ bytes for a factored matrix, where Adam needs $8 n m$; 4 bytes per entry for any other array.
    Momentum adds one array of the size of the parameters.

    Args:
        learning_rate: learning rate $\eta_t$, a number or a schedule, relative to the size of the parameters. None for
            the paper's $\min(10^{-2}, 1 / \sqrt t)$.
        min_dim_size_to_factor: smallest length of the second longest axis for which an array is factored.
        decay_rate: exponent $c$ of the decay rate $\beta_t$ of the second moment.
        decay_offset: number of earlier steps, subtracted from the step count in $\beta_t$, for fine-tuning that
            continues a count.
        multiply_by_parameter_scale: whether steps are multiplied by the root mean square of the parameters; if False,
            $s_t = \eta_t \hat u_t$.
        clipping_threshold: $d$, the largest root mean square of an update; None for no clipping.
        momentum: exponential decay rate $\beta_1$ of the momentum; None for no momentum, and no state for it.
        dtype_momentum: dtype of the momentum; None for that of the parameters.
        weight_decay_rate: weight decay coefficient $\lambda$, not multiplied by the learning rate; None for no weight
            decay.
        eps: $\varepsilon$, added to the squared gradients.
        factored: whether to factor the second moment; if False, it is stored in full for every array.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: which learning rate `learning_rate=None` means: the paper's, `"paper"`, or 1, `"optax"`.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018.
    """

    learning_rate: ma.OptionalNumber = ma.number(None, optional=True)
    min_dim_size_to_factor: int = ma.static(128)
    decay_rate: ma.Number = ma.number(0.8)
    decay_offset: ma.Number = ma.number(0)
    multiply_by_parameter_scale: bool = ma.static(True)
    clipping_threshold: ma.OptionalNumber = ma.number(1.0, needs=NEVER_NEGATIVE, optional=True)
    momentum: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    dtype_momentum: ma.DTypeLike | None = ma.static(jnp.float32)
    weight_decay_rate: ma.OptionalNumber = ma.number(None, optional=True)
    eps: ma.Number = ma.number(1e-30)
    factored: bool = ma.static(True)
    mask: ma.Mask = ma.mask()
    follow: ma.Follow = ma.followed()

    def transform(self) -> ma.Chain:
        rate = self.learning_rate
        if rate is None:
            rate = relative_step if self.follow == "paper" else 1.0
        scaling = self._part(ScaleByFactoredRMS, step_offset=self.decay_offset, epsilon=self.eps)
        clip = [] if self.clipping_threshold is None else [ClipByBlockRMS(self.clipping_threshold)]
        proportion = [ScaleByParamBlockRMS()] if self.multiply_by_parameter_scale else []
        average = [] if self.momentum is None else [Ema(self.momentum, False, self.dtype_momentum)]
        decay = [] if self.weight_decay_rate is None else [ma.AddDecayedWeights(self.weight_decay_rate, self.mask)]
        steps = ma.ScaleByLearningRate(rate, flip_sign=False)
        return ma.Chain(scaling, *clip, steps, *proportion, *average, *decay, ma.Scale(-1.0))
