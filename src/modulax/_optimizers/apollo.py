"""The optimizers Apollo and Apollo-Mini."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, choice, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import AT_LEAST_ONE, DECAY, NON_NEGATIVE, WHOLE
from .._support.keys import key
from .._transforms.apollo import METHODS, SCALES, ScaleByApollo
from .._transforms.decayed_step import DecayedStep
from .._transforms.galore import GaLoreDimensionNumbers
from .._transforms.matrices import matrices_as


class Apollo(AbstractOptimizer):
    r"""AdamW with the memory of SGD: scales each channel of a gradient as Adam scales its random projection.

        optimizer = Apollo(1e-2, rank=256)

    $$
    \begin{aligned}
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad s_j = \|d_{t, j}\| / (\|R_{t, j}\| + 10^{-8}) \\
    \hat u_{t, ij} &= s_j\, g_{t, ij}, \qquad
        \bar u_t = \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t
        - \eta \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t \right)
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns $j$, with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. If
    there are more rows, the columns are projected, and each row has a factor. The entries of $P$ are normal with a
    variance of $1 / r$, and drawn again every `update_proj_gap` steps. Parameters that aren't matrices are trained by
    Adam, with $\varepsilon$ added before the bias correction.

    `ApolloMini` has a projection of rank 1.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        rank: rank $r$ of the projection, at most the length of the smaller side. The authors take a quarter of it.
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        scale_type: `"channel"` for a factor of each channel, or `"tensor"` for one of each matrix.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    learning_rate: Hyperparameter = number(1e-3)
    rank: int = eqx.field(static=True, default=256, metadata={"least": 1})
    update_proj_gap: Hyperparameter = number(200, needs=WHOLE)
    scale: Hyperparameter = number(1.0, needs=NON_NEGATIVE)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    _: KW_ONLY
    scale_type: str = choice(SCALES, "channel")
    method: str = choice(METHODS, "random")
    max_growth: OptionalNumber = number(1.01, needs=AT_LEAST_ONE, optional=True)
    scale_front: bool = eqx.field(static=True, default=False)
    correct_bias: bool = eqx.field(static=True, default=True)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(GaLoreDimensionNumbers))
    key: Any = key()

    def transform(self) -> Chain:
        direction = self._part(ScaleByApollo)
        return Chain(direction, DecayedStep(self.learning_rate, self.weight_decay, self.mask, after=True))


class ApolloMini(AbstractOptimizer):
    r"""Apollo with a projection of rank 1: one factor for each matrix, and hardly any state.

        optimizer = ApolloMini(1e-2)

    $$
    \begin{aligned}
    r_t &= p_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) r_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |r_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad \hat u_t = g_t \|d_t\| / (\|r_t\| + 10^{-8}) \\
    \bar u_t &= \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t
        - \eta \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t \right)
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns, with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. If there
    are more rows, the columns are projected. The entries of the vector $p$ are standard normal, and drawn again every
    `update_proj_gap` steps. It is `Apollo(rank=1, scale_type="tensor", scale=128.0)`. Parameters that aren't matrices
    are trained by Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        update_proj_gap: number of steps between two draws of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded; the authors recommend it where the
            warm-up is short.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    learning_rate: Hyperparameter = number(1e-3)
    update_proj_gap: Hyperparameter = number(200, needs=WHOLE)
    scale: Hyperparameter = number(128.0, needs=NON_NEGATIVE)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    _: KW_ONLY
    method: str = choice(METHODS, "random")
    max_growth: OptionalNumber = number(1.01, needs=AT_LEAST_ONE, optional=True)
    scale_front: bool = eqx.field(static=True, default=False)
    correct_bias: bool = eqx.field(static=True, default=True)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(GaLoreDimensionNumbers))
    key: Any = key()

    def transform(self) -> Chain:
        direction = self._part(ScaleByApollo, rank=1, scale_type="tensor")
        return Chain(direction, DecayedStep(self.learning_rate, self.weight_decay, self.mask, after=True))
