"""CautiousAdamW and CautiousLion: no step in entries where its sign differs from the gradient's."""

from .. import authoring as ma
from .._containers.cautious import Cautious
from .adam import AbstractNarrowMoments, ScaleByAdam
from .lion import AbstractLion, ScaleByLion


class CautiousAdamW(ma.AbstractDecayedByName, AbstractNarrowMoments, ma.AbstractRated):
    r"""AdamW that skips the entries of a step whose sign differs from the gradient's.

        optimizer = CautiousAdamW(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \phi_t &= [m_t g_t > 0] / \max(\operatorname{mean}[m_t g_t > 0], 10^{-3}) \\
    w_{t+1} &= w_t - \eta \left( \phi_t \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$; the mean is that of each array. `Cautious`
    masks the direction of any optimizer in this way.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Liang et al., [Cautious Optimizers: Improving Training with One Line of
        Code](https://arxiv.org/abs/2411.16085), 2024, and the authors' [code](https://github.com/kyleliang919/C-Optim).
    """

    learning_rate: ma.Number = ma.number(1e-3)
    eps: ma.Number = ma.number(1e-6)

    def directions(self):
        return [Cautious(self._part(ScaleByAdam))]


class CautiousLion(ma.AbstractDecayedByName, AbstractLion, ma.AbstractRated):
    r"""Lion that skips the entries of a step whose sign differs from the gradient's.

        optimizer = CautiousLion(1e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    c_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    m_t &= \beta_2 m_{t-1} + (1 - \beta_2) g_t \\
    \phi_t &= \frac{n}{1 + \sum [c_t g_t > 0]} [c_t g_t > 0] \\
    w_{t+1} &= w_t - \eta (\phi_t \operatorname{sign}(c_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$, for each array of $n$ entries. This normalization of the mask is
    that of the authors' Lion; `Cautious(Lion(1e-4))` has that of `CautiousAdamW`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: weight $\beta_1$ of the momentum in the interpolation $c_t$.
        b2: exponential decay rate $\beta_2$ of the momentum.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Liang et al., [Cautious Optimizers: Improving Training with One Line of
        Code](https://arxiv.org/abs/2411.16085), 2024, and the authors' [code](https://github.com/kyleliang919/C-Optim).
    """

    learning_rate: ma.Number = ma.number(1e-4)
    b1: ma.Number = ma.number(0.95, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.98, needs=ma.DECAY)
    _: ma.KW_ONLY
    mu_dtype: ma.DTypeLike | None = ma.static(None)

    def directions(self):
        return [Cautious(self._part(ScaleByLion), normalize="count")]
