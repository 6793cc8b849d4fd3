"""Second moments in less memory than the parameters take: by rows and columns."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._checks import DECAY, FRACTION
from .._leafwise import AbstractLeafwise
from .._module import AbstractState
from .._numerics import abs_sq, moment, safe_sqrt
from .._schedule import Number, number
from .._types import Count
from .adaptive import second_moment_like


def inverse_root(x: Array, eps: Any = 0) -> Array:
    r"""$1 / \sqrt{x + \varepsilon}$, and zero where `x` is not positive, as its gradient."""
    positive = x > 0
    return jnp.where(positive, 1 / safe_sqrt(eps + jnp.where(positive, x, 1)), 0)


class ScaleBySM3State(AbstractState):
    """The state of `ScaleBySM3`: for each leaf the sums of squares along each axis, and the momentum."""

    mu: PyTree
    nu: PyTree


class ScaleBySM3(AbstractLeafwise):
    r"""SM3's direction: Adagrad with one sum of squares for each row, column and so on, instead of each entry.

    The sum of an entry is the least of those it belongs to, plus its own square; the new sums are the largest of
    their entries:

    $$
    \begin{aligned}
    \nu_t(i) &= w \min_{a} \mu_{t-1}^a(i_a) + w' g_t(i)^2, \qquad
    \mu_t^a(k) = \max_{i: i_a = k} \nu_t(i) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t / \sqrt{\nu_t + \varepsilon}, \qquad u_t = m_t
    \end{aligned}
    $$

    with $w = w' = 1$, as in the paper, for $\beta_2 = 1$, and else $w = \beta_2$, $w' = 1 - \beta_2$. Entries without
    any gradient so far do not move.

    State: a parameter of shape $n_1 \times \dots \times n_d$ needs $4 (n_1 + \dots + n_d)$ bytes for the sums in
    float32, beside the momentum, which is as large as the parameter. A scalar has one sum.

    Args:
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay $\beta_2$ of the sums.
        eps: $\varepsilon$.

    References:
        Anil et al., [Memory-Efficient Adaptive Optimization](https://arxiv.org/abs/1901.11150), 2019, SM3-II.
    """

    cites: ClassVar[tuple[str, ...]] = ("anil2019",)

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(1.0, needs=FRACTION)
    eps: Number = number(1e-8)

    def init_leaf(self, p):
        line = second_moment_like(p.reshape(-1)[:0])
        lengths = [(n,) for n in p.shape] or [()]
        return ScaleBySM3State(mu=[jnp.zeros(n, line.dtype) for n in lengths], nu=jnp.zeros_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        axes = range(g.ndim)
        held, treedef = jtu.tree_flatten(s.mu)  # NNX makes a mapping of a list
        lines = [jnp.expand_dims(mu, [i for i in axes if i != a]) for a, mu in enumerate(held)]
        least = functools.reduce(jnp.minimum, [jnp.broadcast_to(line, g.shape) for line in lines])
        total = self.b2 * least + jnp.where(self.b2 == 1, 1, 1 - self.b2) * abs_sq(g)
        sums = [jnp.max(total, axis=tuple(i for i in axes if i != a), initial=0) for a in axes] or [total]
        momentum = moment(self.b1, s.nu, inverse_root(total, self.eps) * g)
        return momentum, ScaleBySM3State(mu=treedef.unflatten(sums), nu=momentum)


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
    count: Count | None = None


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
