"""Factored second moments, as in Adafactor."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, safe_sqrt, second_moment_like
from .._support.module import AbstractState, counter
from .._support.types import Count
from .sm3 import inverse_root


def power_decay(step: Any, exponent: Any) -> Any:
    r"""Adafactor's decay of the mean square at a step counted from 0: $1 - t^{-c}$, with $t = 1$ at the first."""
    return 1 - (step + 1) ** (-exponent)


class FactoredState(AbstractState):
    """The state of `ScaleByFactoredRMS`: the number of steps done, and the mean squares, by row and column or whole.

    Of a leaf that is factored `v` is None, of the others `v_row` and `v_col`.
    """

    v_row: PyTree
    v_col: PyTree
    v: PyTree
    count: Count | None = counter()


class ScaleByFactoredRMS(AbstractLeafwise):
    r"""Divides the updates by the root of their mean square, of which only the means of rows and columns are kept.

    With $n \times m$ the two longest axes, and for all others in each place of its own:

    $$
    \begin{aligned}
    \beta_t &= 1 - t^{-c} \\
    R_t &= \beta_t R_{t-1} + (1 - \beta_t) \tfrac{1}{m} \textstyle\sum_j (|g_t|^2 + \varepsilon)_{ij} \\
    C_t &= \beta_t C_{t-1} + (1 - \beta_t) \tfrac{1}{n} \textstyle\sum_i (|g_t|^2 + \varepsilon)_{ij} \\
    u_t &= g_t / \sqrt{R_t C_t / \operatorname{mean}(R_t)}
    \end{aligned}
    $$

    Where the second longest axis is shorter than `min_dim_size_to_factor`, the whole $V_t = \beta_t V_{t-1} + (1 -
    \beta_t) (|g_t|^2 + \varepsilon)$ is kept, and $u_t = g_t / \sqrt{V_t}$.

    State: a factored matrix of $n \times m$ needs $4 (n + m)$ bytes, another array 4 for each entry, in float32.

    Args:
        factored: whether to factor at all.
        decay_rate: the exponent $c$ of the decay.
        step_offset: the number of steps that do not count, because another run has done them. While there are not yet
            more, the mean square is the last square alone.
        min_dim_size_to_factor: the length that the two longest axes must have.
        epsilon: $\varepsilon$.
        decay_rate_fn: the decay $\beta_t$, from the number of steps before and `decay_rate`. One with a bound below 1
            keeps the mean square moving.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018;
        Zhai et al., [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), 2021.
    """

    cites: ClassVar[tuple[str, ...]] = ("shazeer2018",)

    factored: bool = eqx.field(static=True, default=True)
    decay_rate: Number = number(0.8)
    step_offset: Number = number(0)
    min_dim_size_to_factor: int = eqx.field(static=True, default=128)
    epsilon: Number = number(1e-30)
    decay_rate_fn: Callable[[Any, Any], Any] = eqx.field(static=True, default=power_decay)

    def init_leaf(self, p):
        like = second_moment_like(p)
        axes = self.axes(p.shape)
        if axes is None:
            return FactoredState(v_row=None, v_col=None, v=like)
        row, col = (jnp.zeros(np.delete(p.shape, axis), like.dtype) for axis in axes)
        return FactoredState(v_row=row, v_col=col, v=None)

    def axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The axes that the means of `v_row` and `v_col` are over, the longest and the second; None if not factored."""
        if not self.factored or len(shape) < 2:
            return None
        *_, second, first = np.argsort(shape, kind="stable")
        return (int(first), int(second)) if shape[second] >= max(self.min_dim_size_to_factor, 1) else None

    def prepare(self, count):
        # A fresh state has counted nothing, also where an offset is given: the decay of a negative step is no number.
        return self.decay_rate_fn(jnp.maximum(count - self.step_offset, 0), self.decay_rate)

    def update_leaf(self, now, g, s, p):
        del p
        square = self.epsilon + abs_sq(g)
        axes = self.axes(g.shape)
        if axes is None:
            v = moment(now, s.v, square)
            return inverse_root(v) * g, FactoredState(v_row=None, v_col=None, v=v)
        first, second = axes
        row = moment(now, s.v_row, jnp.mean(square, axis=first))
        col = moment(now, s.v_col, jnp.mean(square, axis=second))
        mean = jnp.mean(row, axis=second - (first < second), keepdims=True)
        # Where squares overflow, so do the means; the columns alone then make the update small, and not NaN.
        is_fine = jnp.isfinite(mean)
        relative = jnp.where(is_fine, safe_sqrt(jnp.where(is_fine, mean, 1)) * inverse_root(row), 1)
        u = jnp.expand_dims(relative, first) * (jnp.expand_dims(inverse_root(col), second) * g)
        return u, FactoredState(v_row=row, v_col=col, v=None)
