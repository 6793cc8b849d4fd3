"""The optimizers AdEMAMix and SimplifiedAdEMAMix."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.ademamix import ScaleByAdEMAMix, ScaleBySimplifiedAdEMAMix
from .decayed import decayed


class AdEMAMix(AbstractOptimizer):
    r"""AdamW with a second, slow momentum that keeps old gradients in use, for long training runs.

        optimizer = AdEMAMix(1e-3, b3=0.9999, alpha=5.0, weight_decay=0.1)

    $$
    \begin{aligned}
    m_{1,t} &= \beta_1 m_{1,t-1} + (1 - \beta_1) g_t, \qquad \hat m_{1,t} = m_{1,t} / (1 - \beta_1^t) \\
    m_{2,t} &= \beta_3 m_{2,t-1} + (1 - \beta_3) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_{1,t} + \alpha m_{2,t}}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and all moments zero at $t = 0$. The paper increases $\alpha$
    and $\beta_3$ by schedules over the first part of training: pass them as `alpha` and `b3`. As in optax, the default
    of `alpha` is 5 here and 6 in `ScaleByAdEMAMix`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the fast first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        b3: exponential decay rate $\beta_3$ of the slow first moment.
        alpha: weight $\alpha$ of the slow first moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of both first moments; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    b3: Hyperparameter = number(0.9999, needs=DECAY)
    alpha: Hyperparameter = number(5.0)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleByAdEMAMix))


class SimplifiedAdEMAMix(AbstractOptimizer):
    r"""AdEMAMix with a single momentum buffer, which saves the memory of the second one.

        optimizer = SimplifiedAdEMAMix(1e-5, b1=0.99, alpha=0.0)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t + \alpha g_t}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. The momentum is a sum, not an average, so
    the learning rate has to be about $1 - \beta_1$ times that of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        alpha: weight $\alpha$ of the current gradient.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.99, needs=DECAY)
    b2: Hyperparameter = number(0.95, needs=DECAY)
    alpha: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, ScaleBySimplifiedAdEMAMix(self.b1, self.b2, self.alpha, self.eps, self.eps_root))
