"""The optimizer ADOPT."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import Array, DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adopt import ScaleByADOPT, fourth_root
from .._transforms.scaling import ScaleByLearningRate


class ADOPT(AbstractOptimizer):
    r"""Adam modified to converge for any $\beta_2$: normalizes each gradient before it enters the momentum.

        optimizer = ADOPT(1e-3, weight_decay=0.01)

    $$
    \begin{aligned}
    v_0 &= |g_0|^2, \qquad m_0 = 0, \qquad w_1 = w_0 \\
    c_t &= \operatorname{clip}(g_t / \max(\sqrt{v_{t-1}}, \varepsilon),\; \pm b(t)) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) c_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    w_{t+1} &= w_t - \eta\, (m_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, and $t = 1, 2, \dots$ after the first line. The first step only initializes $v_0$,
    and leaves the parameters unchanged. With `nesterov`, $$m_t$ in the last line is replaced by
    $\beta_1 m_t + (1 - \beta_1) c_t$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment. The convergence guarantee holds for any value.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        use_clipping: whether to clip the normalized gradients, as the paper recommends.
        clip_value_fn: function that returns the clipping bound $b(t)$, given the step $t$; by default $t^{1/4}$.
        weight_decay: decoupled weight decay $\lambda$, multiplied by the learning rate. For the $L_2$ penalty that the
            authors' code has by default, write `Chain(AddDecayedWeights(...), ADOPT(...))`.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.9999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)
    use_clipping: bool = eqx.field(static=True, default=True, kw_only=True)
    clip_value_fn: Callable[[Array], Array] = eqx.field(static=True, default=fourth_root, kw_only=True)
    _: KW_ONLY
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByADOPT), ScaleByLearningRate(self.learning_rate))
