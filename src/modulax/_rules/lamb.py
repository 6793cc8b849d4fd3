"""LAMB: AdamW with layer-wise trust ratios."""

from .. import authoring as ma
from .._transforms.trust_ratio import ScaleByTrustRatio
from .adam import ScaleByAdam


class LAMB(ma.AbstractMoments, ma.AbstractRated):
    r"""AdamW with layer-wise trust ratios, for large-batch training.

        optimizer = LAMB(1e-2, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon) + \lambda w_t \\
    w_{t+1} &= w_t - \eta \frac{\|w_t\|}{\|u_t\|} u_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. The norms are those of one array; where
    one of them is zero, the ratio is 1.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$; the decay takes part in the trust ratio.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        You et al., [Large Batch Optimization for Deep Learning: Training BERT in 76
        minutes](https://arxiv.org/abs/1904.00962), 2019.
    """

    direction = ScaleByAdam
    eps: ma.Number = ma.number(1e-6)
    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    weight_decay: ma.Number = ma.number(0.0)
    mask: ma.Mask = ma.mask()

    def decays(self):
        return [ma.AddDecayedWeights(self.weight_decay, self.mask), ScaleByTrustRatio()]
