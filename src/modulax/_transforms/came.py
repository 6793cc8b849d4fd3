"""The direction of CAME: Adafactor's, with a momentum that is divided by its instability."""

from dataclasses import KW_ONLY

import equinox as eqx
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, moment, second_moment_like, zeros_in
from .._support.checks import DECAY, NON_NEGATIVE
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared
from .adafactor import divided_by_factors, factors_like
from .clipping import shrinking, shrunk
from .param_block import block_rms
from .sm3 import inverse_root


class ScaleByCAMEState(AbstractState):
    """State of `ScaleByCAME`: step count, momentum, second moment, and instability.

    For a matrix, the second moment and the instability are averages of means over rows and columns, and `v` is None.
    For a vector, `v` is the second moment, and the others are None.
    """

    mu: PyTree
    v_row: PyTree = like_params(nonnegative=True)
    v_col: PyTree = like_params(nonnegative=True)
    v: PyTree = like_params(nonnegative=True)
    instability_row: PyTree = like_params(nonnegative=True)
    instability_col: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = counter()


def last_two_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The axes averaged over in rows and in columns; None for a vector, and where there is nothing to average."""
    return None if len(shape) < 2 or 0 in shape[-2:] else (len(shape) - 1, len(shape) - 2)


class ScaleByCAME(AbstractLeafwise[ScaleByCAMEState]):
    r"""Divides the momentum of Adafactor's updates by the root of its instability: the direction of CAME.

    For a matrix:

    $$
    \begin{aligned}
    V_t &= \beta_2 V_{t-1} + (1 - \beta_2) (|g_t|^2 + \varepsilon) \\
    \hat u_t &= g_t / \sqrt{V_t}, \qquad u_t = \hat u_t / \max(1, \operatorname{RMS}(\hat u_t) / d) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) u_t \\
    S_t &= \beta_3 S_{t-1} + (1 - \beta_3) (|u_t - m_t|^2 + \varepsilon_S) \\
    d_t &= m_t / \sqrt{S_t}
    \end{aligned}
    $$

    Of $V$ and of the instability $S$, only the means $R$ of rows and $C$ of columns are stored, which approximate them
    by $R C / \operatorname{mean}(R)$, as in `ScaleByFactoredRMS`. In an array with more than two axes, the last two
    form the matrices, one for each index of the other axes. For a scalar and a vector, $V$ is stored in full, and
    $d_t = m_t$. No average is corrected for its bias.

    State: the momentum, which is as large as the parameter, and $8 (n + m)$ bytes for a matrix of $n \times m$ entries.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the instability.
        eps: $\varepsilon$, added to the squared gradients.
        instability_eps: $\varepsilon_S$, added to the squared differences between update and momentum.
        clip_threshold: $d$, the largest root mean square of an update.
        mu_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Luo et al., [CAME: Confidence-guided Adaptive Memory Efficient
        Optimization](https://arxiv.org/abs/2307.02047), 2023, and the authors'
        [code](https://github.com/yangluo7/CAME).
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    b3: Number = number(0.9999, needs=DECAY)
    eps: Number = number(1e-30)
    instability_eps: Number = number(1e-16)
    clip_threshold: Number = number(1.0, needs=NON_NEGATIVE)
    _: KW_ONLY
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        mu, axes = zeros_in(p, self.mu_dtype), last_two_axes(p.shape)
        if axes is None:
            return ScaleByCAMEState(mu, None, None, second_moment_like(p), None, None)
        return ScaleByCAMEState(mu, *factors_like(p, axes), None, *factors_like(p, axes))

    def update_leaf(self, now, g, s, p):
        del now, p
        square, axes = self.eps + abs_sq(g), last_two_axes(g.shape)
        if axes is None:
            v = moment(self.b2, s.v, square)
            mu = moment(self.b1, s.mu, self._clipped(inverse_root(v) * g))
            return mu, ScaleByCAMEState(mu, None, None, v, None, None)
        u, v_row, v_col = divided_by_factors(g, square, s.v_row, s.v_col, axes, self.b2)
        u = self._clipped(u)
        mu = moment(self.b1, s.mu, u)
        difference = self.instability_eps + abs_sq(u - mu)
        d, row, col = divided_by_factors(mu, difference, s.instability_row, s.instability_col, axes, self.b3)
        return d, ScaleByCAMEState(mu, v_row, v_col, None, row, col)

    def _clipped(self, u: Array) -> Array:
        return shrunk(u, shrinking(self.clip_threshold, block_rms(u)))
