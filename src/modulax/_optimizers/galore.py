"""The optimizer GaLore: Adam or another transform on low-rank gradients."""

from dataclasses import KW_ONLY
from typing import Any, Literal

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.container import part
from .._protocol.fields import Hyperparameter, choice, followed, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import WHOLE
from .._support.types import Follow
from .._transforms.decayed_step import DecayedStep
from .._transforms.galore import GaLoreDimensionNumbers, ScaleByGaLore, adam_unless_given
from .._transforms.matrices import matrices_as
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


class GaLore(AbstractOptimizer):
    r"""Memory-efficient Adam for large models: keeps the moments of a low-rank projection of each gradient matrix.

        optimizer = GaLore(1e-3, rank=128, scale=0.25)

    $$
    \begin{aligned}
    P_t &= \begin{cases} U_{:,1:r} \text{ of } g_t = U \Sigma V^\top & t \equiv 0 \pmod T \\ P_{t-1} &
        \text{otherwise} \end{cases} \\
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad \hat m_t = m_t / (1 - \beta_1^{t+1}) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^{t+1}) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t - \eta \alpha\, P_t\, \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon}
        \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $t = 0, 1, \dots$, for a matrix with at most as many rows as columns. If there
    are more rows, the columns are projected in the same way. Parameters that aren't matrices are trained by Adam
    without projection, and without $\alpha$. The lines of $m_t$ and $v_t$ are the default `base_optimizer`; another one
    replaces them. The weights decay after the step, as in the authors' code; with `follow="optax"`, before it, as in
    AdamW.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        rank: rank $r$ of the projection.
        update_proj_gap: number $T$ of steps between two computations of the projectors.
        scale: factor $\alpha$ of the updates of matrices; the paper uses 0.25.
        base_optimizer: transform that is run on the projected gradients, without learning rate; by default
            `ScaleByAdam()`.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        follow: which side is projected, and when the weights decay: the smaller one, and after the step, `"paper"`; or
            the larger one, and before it, `"optax"`.
        method: how the projectors are found, `"svd"` or `"range"`, as in `ScaleByGaLore`: `"range"` compiles on
            a TPU in a fraction of the time, and may train worse.

    References:
        Zhao et al., [GaLore: Memory-Efficient LLM Training by Gradient Low-Rank
        Projection](https://arxiv.org/abs/2403.03507), 2024.
    """

    learning_rate: Hyperparameter = required_number()
    rank: int = eqx.field(static=True, default=128)
    update_proj_gap: Hyperparameter = number(200, needs=WHOLE)
    scale: Hyperparameter = number(1.0)
    base_optimizer: AbstractTransform = part(None, converter=adam_unless_given)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(GaLoreDimensionNumbers))
    _: KW_ONLY
    follow: Follow = followed()
    method: Literal["svd", "range"] = choice(("svd", "range"), "svd")

    def transform(self) -> Chain:
        direction = ScaleByGaLore(
            self.rank,
            self.update_proj_gap,
            self.scale,
            self.base_optimizer,
            self.weight_dimension_numbers,
            follow=self.follow,
            method=self.method,
        )
        if self.follow == "optax":
            decay = AddDecayedWeights(self.weight_decay, self.mask)
            return Chain(direction, decay, ScaleByLearningRate(self.learning_rate))
        return Chain(direction, DecayedStep(self.learning_rate, self.weight_decay, self.mask, after=True))
