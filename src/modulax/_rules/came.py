"""CAME: Adafactor with a momentum that is divided by its instability."""

from .. import authoring as ma
from .._transforms.clipping import block_rms, shrinking, shrunk
from .adafactor import divided_by_factors, factors_like
from .sm3 import inverse_root


class ScaleByCAMEState(ma.AbstractState):
    """State of `ScaleByCAME`: step count, momentum, second moment, and instability.

    For a matrix, the second moment and the instability are averages of means over rows and columns, and `v` is None.
    For a vector, `v` is the second moment, and the others are None.
    """

    mu: ma.PyTree
    v_row: ma.PyTree = ma.like_params(nonnegative=True)
    v_col: ma.PyTree = ma.like_params(nonnegative=True)
    v: ma.PyTree = ma.like_params(nonnegative=True)
    instability_row: ma.PyTree = ma.like_params(nonnegative=True)
    instability_col: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


def last_two_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The axes averaged over in rows and in columns; None for a vector, and where there is nothing to average."""
    return None if len(shape) < 2 or 0 in shape[-2:] else (len(shape) - 1, len(shape) - 2)


class AbstractCAME(ma.AbstractFields):
    r"""The hyperparameters of CAME.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the instability.
        eps: $\varepsilon$, added to the squared gradients.
        instability_eps: $\varepsilon_S$, added to the squared differences between update and momentum.
        clip_threshold: $d$, the largest root mean square of an update.
        mu_dtype: dtype of the momentum; by default that of the parameters.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    b3: ma.Number = ma.number(0.9999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-30)
    instability_eps: ma.Number = ma.number(1e-16)
    clip_threshold: ma.Number = ma.number(1.0, needs=ma.NON_NEGATIVE)
    _: ma.KW_ONLY
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByCAME(AbstractCAME, ma.AbstractLeafwise[ScaleByCAMEState]):
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

    def init_leaf(self, p):
        mu, axes = ma.zeros_in(p, self.mu_dtype), last_two_axes(p.shape)
        if axes is None:
            return ScaleByCAMEState(mu, None, None, ma.second_moment_like(p), None, None)
        return ScaleByCAMEState(mu, *factors_like(p, axes), None, *factors_like(p, axes))

    def update_leaf(self, now, g, s, p):
        del now, p
        square, axes = self.eps + ma.abs_sq(g), last_two_axes(g.shape)
        if axes is None:
            v = ma.moment(self.b2, s.v, square)
            mu = ma.moment(self.b1, s.mu, self._clipped(inverse_root(v) * g))
            return mu, ScaleByCAMEState(mu, None, None, v, None, None)
        u, v_row, v_col = divided_by_factors(g, square, s.v_row, s.v_col, axes, self.b2)
        u = self._clipped(u)
        mu = ma.moment(self.b1, s.mu, u)
        difference = self.instability_eps + ma.abs_sq(u - mu)
        d, row, col = divided_by_factors(mu, difference, s.instability_row, s.instability_col, axes, self.b3)
        return d, ScaleByCAMEState(mu, v_row, v_col, None, row, col)

    def _clipped(self, u: ma.Array) -> ma.Array:
        return shrunk(u, shrinking(self.clip_threshold, block_rms(u)))


class CAME(ma.AbstractDecayed, AbstractCAME, ma.AbstractRated):
    r"""Adafactor with a confidence-guided momentum: entries whose updates disagree with it take smaller steps.

        optimizer = CAME(2e-4, weight_decay=0.01)

    For a matrix:

    $$
    \begin{aligned}
    V_t &= \beta_2 V_{t-1} + (1 - \beta_2) (|g_t|^2 + \varepsilon) \\
    \hat u_t &= g_t / \sqrt{V_t}, \qquad u_t = \hat u_t / \max(1, \operatorname{RMS}(\hat u_t) / d) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) u_t \\
    S_t &= \beta_3 S_{t-1} + (1 - \beta_3) (|u_t - m_t|^2 + \varepsilon_S) \\
    w_{t+1} &= w_t - \eta (m_t / \sqrt{S_t} + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = V_0 = S_0 = 0$. Of $V$ and $S$, the means $R$ of rows and $C$ of columns
    are stored, which approximate them by $R C / \operatorname{mean}(R)$. In an array with more than two axes, the last
    two form the matrices. For a scalar and a vector, $V$ is stored in full, and the step is $\eta m_t$.

    Its authors take the betas of AdamW for $\beta_1$ and $\beta_2$, a larger $\beta_3$, and 0.5 to 0.9 times the
    learning rate of AdamW.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the instability.
        eps: $\varepsilon$, added to the squared gradients.
        instability_eps: $\varepsilon_S$, added to the squared differences between update and momentum.
        clip_threshold: $d$, the largest root mean square of an update.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum; by default that of the parameters.

    References:
        Luo et al., [CAME: Confidence-guided Adaptive Memory Efficient
        Optimization](https://arxiv.org/abs/2307.02047), 2023, and the authors'
        [code](https://github.com/yangluo7/CAME).
    """

    direction = ScaleByCAME
