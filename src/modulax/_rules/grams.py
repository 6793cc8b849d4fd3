"""GramsAdamW: steps with the size of Adam's and the sign of the gradient."""

from .. import authoring as ma
from .._containers.cautious import Grams
from .adam import AbstractNarrowMoments, ScaleByAdam


class GramsAdamW(ma.AbstractDecayedByName, AbstractNarrowMoments, ma.AbstractRated):
    r"""AdamW that takes the size of each step from Adam and its sign from the gradient.

        optimizer = GramsAdamW(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    w_{t+1} &= w_t - \eta \left( \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \,
        \frac{|m_t|}{\sqrt{v_t} + \varepsilon} \operatorname{sign}(g_t) + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. `Grams` does this to any optimizer. As in
    the authors' code, $\varepsilon$ is added before the bias correction, unlike in `AdamW`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Cao et al., [Grams: Gradient Descent with Adaptive Momentum Scaling](https://arxiv.org/abs/2412.17107), 2024,
        and the authors' [code](https://github.com/Gunale0926/Grams).
    """

    learning_rate: ma.Number = ma.number(1e-3)
    eps: ma.Number = ma.number(1e-6)

    def directions(self):
        return [Grams(self._part(ScaleByAdam, corrected_eps=False))]
