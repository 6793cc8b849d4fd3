"""The optimizer Adam-mini."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam_mini import ScaleByAdamMini
from .._transforms.block_means import roles_of_blocks
from .decayed import decayed


class AdamMini(AbstractOptimizer):
    r"""AdamW with half the state: one second moment for each head, output or token.

        optimizer = AdamMini(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \operatorname{mean}_{\text{block}} |g_t|^2 \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. The blocks follow from the role of a parameter, see
    `ScaleByAdamMini`: each head of queries and keys, each output of other matrices, each token of an embedding, each
    entry of a bias, and the whole array of everything else. `print(roles(model))` shows the roles. Hyperparameters are
    those of AdamW. The authors exclude biases and the gains of norms from the weight decay: `mask=by_role({Bias: False,
    Gain: False}, default=True)`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Zhang et al., [Adam-mini: Use Fewer Learning Rates To Gain More](https://arxiv.org/abs/2406.16793), 2024, and
        the authors' [code](https://github.com/zyushun/Adam-mini).
    """

    learning_rate: Hyperparameter = number(1e-3)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    roles: Any = roles_of_blocks()

    def transform(self) -> Chain:
        return decayed(self, ScaleByAdamMini(self.b1, self.b2, self.eps, self.mu_dtype, roles=self.roles))
