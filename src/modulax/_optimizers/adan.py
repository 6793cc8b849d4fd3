"""The optimizer Adan."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, Number, OptionalNumber, followed, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, NON_NEGATIVE, POSITIVE
from .._support.types import Follow
from .._transforms.adan import ScaleByAdan
from .._transforms.clipping import reduced, reduction
from .._transforms.regularization import AddDecayedWeights, ProximalWeightDecay
from .._transforms.scaling import ScaleByLearningRate
from ..tree._math import norm


class Adan(AbstractOptimizer):
    r"""Adam with Nesterov momentum estimated from gradient differences, for training large models in fewer steps.

        optimizer = Adan(5e-3, weight_decay=0.02)

    $$
    \begin{aligned}
    d_t &= g_t - g_{t-1}, \qquad d_1 = 0 \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) d_t \\
    n_t &= \beta_3 n_{t-1} + (1 - \beta_3) |g_t + \beta_2 d_t|^2 \\
    \hat m_t &= \frac{m_t}{1 - \beta_1^t}, \qquad \hat v_t = \frac{v_t}{1 - \beta_2^t}, \qquad
        \hat n_t = \frac{n_t}{1 - \beta_3^t} \\
    u_t &= \frac{\hat m_t + \beta_2 \hat v_t}{\sqrt{\hat n_t + \bar\varepsilon} + \varepsilon} \\
    w_{t+1} &= (w_t - \eta u_t) / (1 + \eta \lambda)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = n_0 = 0$. With `follow="optax"`, the weight
    $\beta_2$ of $d_t$ and $\hat v_t$ is replaced by $1 - \beta_2$, and the weight decay is that of `AdamW`,
    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment. The paper's $\beta_1$ is 1 minus this one, and so are
            its $\beta_2$ and $\beta_3$.
        b2: exponential decay rate $\beta_2$ of the average of gradient differences.
        b3: exponential decay rate $\beta_3$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        proximal: whether the decay is proximal, as above; else that of `AdamW`, as with `no_prox` in the authors' code.
        max_grad_norm: largest global norm of the gradients, which are clipped before, with $\varepsilon$ added to the
            norm as in the authors' code; None for no bound.
        follow: `"paper"`, or `"optax"` for its weight of the difference and its weight decay.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.98, needs=DECAY)
    b2: Hyperparameter = number(0.92, needs=DECAY)
    b3: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    proximal: bool = eqx.field(static=True, default=True)
    max_grad_norm: OptionalNumber = number(None, needs=POSITIVE, optional=True)
    follow: Follow = followed()

    def transform(self) -> Chain:
        direction = ScaleByAdan(self.b1, self.b2, self.b3, self.eps, self.eps_root, follow=self.follow)
        rate = ScaleByLearningRate(self.learning_rate)
        clip = [] if self.max_grad_norm is None else [_Clip(self.max_grad_norm, self.eps)]
        if self.follow == "paper" and self.proximal:
            decay = ProximalWeightDecay(self.learning_rate, self.weight_decay, self.mask)
            return Chain(*clip, direction, rate, decay)
        return Chain(*clip, direction, AddDecayedWeights(self.weight_decay, self.mask), rate)


class _Clip(AbstractLeafwise):
    r"""The gradient clipping of the authors' code of Adan: by $\min(1, \Delta / (\|g\| + \varepsilon))$.

    Args:
        max_norm: largest norm $\Delta$ of all updates together.
        eps: $\varepsilon$.
    """

    max_norm: Number = required_number(needs=NON_NEGATIVE)
    eps: Number = number(1e-8)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return reduction(self.max_norm, self.eps + norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return reduced(g, now), s
