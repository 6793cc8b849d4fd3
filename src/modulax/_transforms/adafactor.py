"""Adafactor: a second moment that is stored as the means of its rows and columns."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, mean, moment, real_dtype, safe_sqrt, second_moment_like
from .._support.module import AbstractState, counter, like_params
from .._support.tracing import call_user
from .._support.types import Count, Shared
from .sm3 import inverse_root


def power_decay(step: Any, exponent: Any) -> Any:
    """Adafactor's decay rate of the second moment, $1 - t^{-c}$, where $t$ is `step + 1` and $c$ is `exponent`."""
    return 1 - (step + 1) ** (-exponent)


def factors_like(p: Array, axes: tuple[int, int]) -> tuple[Array, Array]:
    """Zeros for the means over each of two axes."""
    dtype = at_least_float32(real_dtype(p.dtype))
    row, col = (jnp.zeros(np.delete(p.shape, axis), dtype) for axis in axes)
    return row, col


def divided_by_factors(
    x: Array, square: Array, row: Array, col: Array, axes: tuple[int, int], decay: Any
) -> tuple[Array, Array, Array]:
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
    row = moment(decay, row, mean(square, first))
    col = moment(decay, col, mean(square, second))
    whole = mean(row, second - (first < second), keepdims=True)
    # If squares overflow, so do all means. Dividing by the column means alone gives a small update instead of NaN.
    is_fine = jnp.isfinite(whole)
    relative = jnp.where(is_fine, safe_sqrt(jnp.where(is_fine, whole, 1)) * inverse_root(row), 1)
    # One factor after the other, because their product could overflow.
    return jnp.expand_dims(relative, first) * (jnp.expand_dims(inverse_root(col), second) * x), row, col


class FactoredState(AbstractState):
    """State of `ScaleByFactoredRMS`: step count, and the second moment, by rows and columns or in full.

    `v` is None for factored leaves, `v_row` and `v_col` are None for all others.
    """

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "v_row", "v_col", "v")

    v_row: PyTree = like_params(nonnegative=True)
    v_col: PyTree = like_params(nonnegative=True)
    v: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


class ScaleByFactoredRMS(AbstractLeafwise[FactoredState]):
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

    factored: bool = eqx.field(static=True, default=True)
    decay_rate: Number = number(0.8)
    step_offset: Number = number(0)
    min_dim_size_to_factor: int = eqx.field(static=True, default=128)
    epsilon: Number = number(1e-30)
    decay_rate_fn: Callable[[Any, Any], Any] = eqx.field(static=True, default=power_decay)

    def init_leaf(self, p):
        axes = self.axes(p.shape)
        if axes is None:
            # None and not an array without elements, which orbax does not store.
            return FactoredState(v_row=None, v_col=None, v=second_moment_like(p))
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
        square = self.epsilon + abs_sq(g)
        axes = self.axes(g.shape)
        if axes is None:
            v = moment(now, s.v, square)
            return inverse_root(v) * g, FactoredState(v_row=None, v_col=None, v=v)
        u, row, col = divided_by_factors(g, square, s.v_row, s.v_col, axes, now)
        return u, FactoredState(v_row=row, v_col=col, v=None)
