"""The optimizer SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, WHOLE
from .._transforms.decayed_step import DecayedStep
from .._transforms.matrices import matrices_as
from .._transforms.muon import MuonDimensionNumbers
from .._transforms.soap import ScaleBySOAP


class SOAP(AbstractOptimizer):
    r"""Adam run in the eigenbasis of Shampoo's preconditioner, which is refreshed every few steps.

        optimizer = SOAP(3e-3, weight_decay=0.01, precondition_frequency=10)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    g'_t &= Q_L^\top g_t Q_R \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g'_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g'_t|^2 \\
    d_t &= \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, Q_L \frac{m_t}{\sqrt{v_t} + \varepsilon} Q_R^\top \\
    w_{t+1} &= (1 - \eta \lambda)(w_t - \eta d_t) \\
    L_t &= \beta L_{t-1} + (1 - \beta) g_t g_t^\top, \qquad R_t = \beta R_{t-1} + (1 - \beta) g_t^\top g_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix. The columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$, as
    in `ScaleBySOAP`. The first call computes them from the first gradient, and changes no parameter. Adam trains
    vectors, also from the second call on.

    `EShampoo` is the form of Meta's Distributed Shampoo, without the skipped step.

    A step costs about as many operations as six products of the gradient with a square matrix of its sides, and the
    state has two moments and two square matrices for each side: for a square matrix, six times its size.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        shampoo_beta: exponential decay rate $\beta$ of the outer products; by default $\beta_2$.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number of steps between two improvements of the bases.
        max_precond_dim: the longest side of a matrix that gets a basis; the other side may still have one.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`; by default all arrays whose axes
            are inputs and outputs.
        normalize_grads: whether the direction of each matrix is divided by the root of its mean square.
        correct_bias: whether to correct the bias of the moments, as above.
        preconditioner_dtype: dtype in which outer products and bases are kept, as in `ScaleBySOAP`; by default
            that of the parameters, at least float32.

    References:
        Vyas et al., [SOAP: Improving and Stabilizing Shampoo using Adam](https://arxiv.org/abs/2409.11321), 2024, and
        the authors' [code](https://github.com/nikhilvyas/SOAP).
    """

    learning_rate: Hyperparameter = number(3e-3)
    b1: Hyperparameter = number(0.95, needs=DECAY)
    b2: Hyperparameter = number(0.95, needs=DECAY)
    shampoo_beta: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.01)
    precondition_frequency: Hyperparameter = number(10, needs=WHOLE)
    max_precond_dim: int = eqx.field(static=True, default=10_000, metadata={"least": 1})
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    _: KW_ONLY
    normalize_grads: bool = eqx.field(static=True, default=False)
    correct_bias: bool = eqx.field(static=True, default=True)
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            self._part(ScaleBySOAP),
            DecayedStep(self.learning_rate, self.weight_decay, self.mask, after=True, start=1),
        )
