"""The optimizers Shampoo and KL-Shampoo."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.container import part
from .._protocol.fields import Hyperparameter, OptionalNumber, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import DECAY, FRACTION, WHOLE
from .._transforms.matrices import matrices_as
from .._transforms.muon import MuonDimensionNumbers
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.shampoo import ScaleByShampoo


class Shampoo(AbstractOptimizer):
    r"""Preconditions the gradient of each matrix by inverse fourth roots of the sums of its outer products.

        optimizer = Shampoo(1e-3, b2=0.99, precondition_frequency=10, grafting=ScaleByAdam())

    $$
    \begin{aligned}
    L_t &= L_{t-1} + g_t g_t^\top, \qquad R_t = R_{t-1} + g_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    u_t &= (L_t + \varepsilon I)^{-1/4}\, \hat m_t\, (R_t + \varepsilon I)^{-1/4} \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix; see `ScaleByShampoo` for vectors, blocks and roots. With
    `grafting=ScaleByAdam()`, a step has the length of one of Adam, and takes learning rates of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate of the outer products; 1 for their sum, as above.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default that number.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByShampoo`.
        preconditioner_dtype: dtype in which outer products and roots are kept, as in `ScaleByShampoo`; by default
            that of the parameters, at least float32.

    References:
        Gupta et al., [Shampoo: Preconditioned Stochastic Tensor Optimization](https://arxiv.org/abs/1802.09568), 2018;
        Shi et al., [A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo
        Optimizer](https://arxiv.org/abs/2309.06497), 2023.
    """

    learning_rate: Hyperparameter = number(1e-2)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(1.0, needs=FRACTION)
    b3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-12)
    weight_decay: Hyperparameter = number(0.0)
    precondition_frequency: Hyperparameter = number(1, needs=WHOLE)
    start: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    block_size: int = eqx.field(static=True, default=1024, metadata={"least": 1})
    exponent: OptionalNumber = number(None, optional=True)
    grafting: AbstractTransform | None = part(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None, kw_only=True)

    def transform(self) -> Chain:
        return _transform(self, self.b3)


class KLShampoo(AbstractOptimizer):
    r"""Shampoo whose two factors whiten each other's outer products.

        optimizer = KLShampoo(1e-3, b2=0.99, precondition_frequency=10, grafting=ScaleByAdam())

    $$
    \begin{aligned}
    L_t &= L_{t-1} + g_t R^{-1/2} g_t^\top, \qquad R_t = R_{t-1} + g_t^\top L^{-1/2} g_t \\
    u_t &= (L_t + \varepsilon I)^{-1/4}\, \hat m_t\, (R_t + \varepsilon I)^{-1/4} \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    $L^{-1/4}$ and $R^{-1/4}$ are those that were computed last. All else is as in `Shampoo`. The paper has the exponent
    1/2 in place of 1/4: `exponent=0.5`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum $m$.
        b2: exponential decay rate of the outer products; 1 for their sum, as above.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default that number.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByShampoo`.
        preconditioner_dtype: dtype in which outer products and roots are kept, as in `ScaleByShampoo`; by default
            that of the parameters, at least float32.

    References:
        Lin et al., [Understanding and Improving the Shampoo Optimizer via Kullback-Leibler
        Minimization](https://arxiv.org/abs/2509.03378), 2025, and the
        [code](https://github.com/facebookresearch/optimizers) of Distributed Shampoo.
    """

    learning_rate: Hyperparameter = number(1e-2)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(1.0, needs=FRACTION)
    eps: Hyperparameter = number(1e-12)
    weight_decay: Hyperparameter = number(0.0)
    precondition_frequency: Hyperparameter = number(1, needs=WHOLE)
    start: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    block_size: int = eqx.field(static=True, default=1024, metadata={"least": 1})
    exponent: OptionalNumber = number(None, optional=True)
    grafting: AbstractTransform | None = part(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None, kw_only=True)

    def transform(self) -> Chain:
        return _transform(self, None, kl=True)


def _transform(of: Shampoo | KLShampoo, b3: Any, *, kl: bool = False) -> Chain:
    rule = ScaleByShampoo(
        of.b1,
        of.b2,
        b3,
        of.eps,
        of.precondition_frequency,
        of.start,
        of.block_size,
        of.exponent,
        of.grafting,
        of.weight_dimension_numbers,
        kl=kl,
        preconditioner_dtype=of.preconditioner_dtype,
    )
    return Chain(rule, AddDecayedWeights(of.weight_decay, of.mask), ScaleByLearningRate(of.learning_rate))
