"""The optimizer AMSGrad."""

from dataclasses import KW_ONLY

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.amsgrad import ScaleByAMSGrad
from .._transforms.scaling import ScaleByLearningRate


class AMSGrad(AbstractOptimizer):
    r"""Adam with the maximum of past second moments in the denominator, which converges where Adam may not.

        optimizer = AMSGrad(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \bar v_t &= \max(\bar v_{t-1}, v_t), \qquad \hat v_t = \bar v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta\, \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = \bar v_0 = 0$. This is the form of torch and
    Keras. The paper has no bias corrections: `bias_correction_mu=False, bias_correction_nu=False`. With
    `follow="optax"`, $\bar v_t = \max(\bar v_{t-1}, v_t / (1 - \beta_2^t))$ and $\hat v_t = \bar v_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        bias_correction_mu: whether to correct the bias of the first moment; if False, $\hat m_t = m_t$.
        bias_correction_nu: whether to correct the bias of the second moment; if False, $\hat v_t = \bar v_t$.
        follow: `"paper"` takes the maximum of the second moment before its bias correction, `"optax"` after it.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = eqx.field(static=True, default=True)
    bias_correction_nu: bool = eqx.field(static=True, default=True)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByAMSGrad), ScaleByLearningRate(self.learning_rate))
