"""GPAAdamW: AdamW with generalized primal averaging."""

from .. import authoring as ma
from .._transforms.primal_averaging import WEIGHT, PrimalAveraging
from .adam import AbstractNarrowMoments, ScaleByAdam


class GPAAdamW(ma.AbstractDecayedByName, AbstractNarrowMoments, ma.AbstractRated):
    r"""AdamW with generalized primal averaging (GPA), which averages the iterates at every step.

        optimizer = GPAAdamW(1e-3, weight_decay=0.1)
        params, state = optimizer.step(grads, state, params)
        average = optimizer.eval_params(state, params)  # evaluate and save these

    $$
    \begin{aligned}
    y_t &= \mu_y x_t + (1 - \mu_y) z_t, \qquad g_t = \nabla f(y_t) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    z_{t+1} &= (1 - \eta \lambda) z_t - \eta\, \hat m_t / (\sqrt{\hat v_t} + \varepsilon) \\
    x_{t+1} &= \mu_x x_t + (1 - \mu_x) z_{t+1}
    \end{aligned}
    $$

    with $t = 1, 2, \dots$, $m_0 = v_0 = 0$, and $x$, $y$ and $z$ started from the initial parameters. The parameters
    during training are $y$. Evaluate and save the average $x$, which is `eval_params(state, params)`. GPA does in every
    step what `DiLoCo` with one worker does once per round; the default of $\mu_x$ is the authors' for rounds of 32
    steps. Schedule the learning rate as for AdamW. `PrimalAveraging` describes the weight decay, and does the same
    after any direction.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        train_interp_coeff: weight $\mu_y$ of the average in the parameters that are trained, in (0, 1].
        eval_interp_coeff: weight $\mu_x$ of the old average in the new one, in [0, 1].
        decay_on_y: whether $y_t$ decays instead of $z_t$.

    References:
        Defazio et al., [Smoothing DiLoCo with Primal Averaging for Faster Training of
        LLMs](https://arxiv.org/abs/2512.17131), 2025, and the authors'
        [code](https://github.com/facebookresearch/optimizers).
    """

    _: ma.KW_ONLY
    train_interp_coeff: ma.Number = ma.number(0.7, needs=WEIGHT)
    eval_interp_coeff: ma.Number = ma.number(0.9967, needs=ma.FRACTION)
    decay_on_y: bool = ma.static(False)

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByAdam), self._part(PrimalAveraging))
