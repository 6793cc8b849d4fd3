"""The optimizer EShampoo: eigenvalue-corrected Shampoo."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, FRACTION, WHOLE
from .._transforms.eshampoo import ScaleByEShampoo
from .._transforms.matrices import matrices_as
from .._transforms.muon import MuonDimensionNumbers
from .decayed import decayed


class EShampoo(AbstractOptimizer):
    r"""Eigenvalue-corrected Shampoo: the form of SOAP in Meta's Distributed Shampoo.

        optimizer = EShampoo(1e-3, weight_decay=0.01, precondition_frequency=100)

    $$
    \begin{aligned}
    L_t &= \beta_2 L_{t-1} + (1 - \beta_2) g_t g_t^\top, \qquad R_t = \beta_2 R_{t-1} + (1 - \beta_2) g_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |Q_L^\top g_t Q_R|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= Q_L \frac{Q_L^\top \hat m_t Q_R}{\sqrt{\hat v_t} + \varepsilon} Q_R^\top \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix. The columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$, as
    in `ScaleByEShampoo`. Vectors are trained by Adam.

    Differences from `SOAP`: the first step moves parameters; the bases are computed with the gradient of the step, by
    eigendecompositions; the momentum stays outside the bases, and is projected in each step; the second moment does not
    change with the bases; $\varepsilon$ is added after the bias correction. Learning rates, decay rates and weight
    decay of AdamW suit it.

    A step costs two products with square matrices of the sides more than one of `SOAP`. The state is as large.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products and of the second moment; 1 for their sums.
        b3: exponential decay rate of the average of momentum and gradient that is projected; by default $\beta_1$, for
            the momentum itself.
        eps: $\varepsilon$, added to the root of the corrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number of steps between two computations of the bases.
        start: the first step with bases; by default that number.
        block_size: the longest side of a block of a matrix; each block has its own bases.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        qr_iterations: number of iterations of the QR algorithm that improve the bases, as in `ScaleByEShampoo`; None
            for an eigendecomposition.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        preconditioner_dtype: dtype in which outer products and bases are kept, as in `ScaleByEShampoo`; by default
            that of the parameters, at least float32.

    References:
        Eschenhagen et al., [Purifying Shampoo: Investigating Shampoo's Heuristics by Decomposing its
        Preconditioner](https://arxiv.org/abs/2506.03595), 2025, and the
        [code](https://github.com/facebookresearch/optimizers) of Distributed Shampoo.
    """

    learning_rate: Hyperparameter = number(1e-3)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=FRACTION)
    b3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-12)
    weight_decay: Hyperparameter = number(1e-5)
    precondition_frequency: Hyperparameter = number(100, needs=WHOLE)
    start: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    block_size: int = eqx.field(static=True, default=8192, metadata={"least": 1})
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    _: KW_ONLY
    qr_iterations: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleByEShampoo))
