"""The optimizer Kron: PSGD with a Kronecker-factored preconditioner."""

import math
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, choice, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, FRACTION
from .._support.keys import key
from .._support.types import Params
from .._transforms.kron import DIAGONAL, ScaleByKron
from .._transforms.matrices import matrices_as
from .._transforms.muon import MuonDimensionNumbers
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from ..schedules import ExponentialDecay


def with_two_axes(params: Params) -> PyTree:
    """A mask of all arrays with at least two axes, which are those that decay in the authors' code."""
    return jtu.tree_map(lambda p: p.ndim > 1, params)


class Kron(AbstractOptimizer):
    r"""PSGD with Kronecker factors (PSGD Kron): whitens the momentum of each matrix by two triangular factors.

        optimizer = Kron(3e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \hat m_t = m_t / (1 - \beta^t) \\
    x_t &= \hat m_t + \sqrt{\epsilon}\, \overline{|\hat m_t|}\, V_t, \qquad V_{t,ij} \sim \mathcal{N}(0, 1) \\
    A_t &= Q_L x_t Q_R^\top, \qquad B_t = Q_L^{-\top} V_t Q_R^{-1} \\
    Q_L &\leftarrow Q_L - \mu \frac{\operatorname{triu}(A_t A_t^\top - B_t B_t^\top)}
        {\|A_t A_t^\top + B_t B_t^\top\|} Q_L, \qquad
    Q_R \leftarrow Q_R - \mu \frac{\operatorname{triu}(A_t^\top A_t - B_t^\top B_t)}
        {\|A_t^\top A_t + B_t^\top B_t\|} Q_R \\
    u_t &= Q_L^\top Q_L\, x_t\, Q_R^\top Q_R, \qquad
    w_{t+1} = w_t - \eta \bigl(u_t \min(1, 1.1 / \operatorname{RMS}(u_t)) + \lambda w_t\bigr)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix; see `ScaleByKron` for vectors, long sides and the norm. The factors move
    in every step at first, and later every 33 steps.

    The state has the momentum and two triangular matrices, stored as square ones: for a square matrix, three times its
    size.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        preconditioner_update_probability: the fraction $p$ of the steps in which the factors move, every $1 / p$
            steps; by default 1 for 500 steps, then $e^{-(t - 500) / 1000}$, and at least 0.03.
        precond_lr: learning rate $\mu$ of the factors.
        precond_init_scale: the first preconditioner, $Q_L \otimes Q_R$, is this times the identity.
        max_size_triangular: the longest side with a triangular factor; that of a longer one is diagonal.
        min_ndim_triangular: the smallest number of axes of an array with triangular factors: 1 for vectors too.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all arrays with at least two axes.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        diagonal: which sides of a matrix have diagonal factors, whatever their length: `"none"`, `"longer"` for the
            longer one of two sides of different lengths, `"one"` for that or the inputs of a square matrix, or `"all"`.
        momentum_into_precond_update: whether the factors follow the momentum, as above, and not the gradient.
        key: a seed, or a JAX key, for $V$.
        block_size: the longest side of the blocks that matrices are divided into, each with factors and an RMS of its
            own; by default, matrices are whole. A step of a square matrix of width $n$ takes in the order of $n^3$
            operations without blocks, and $n^2 b$ with blocks of width $b$, which is 256 in `distributed_kron`.

    References:
        Li, [Preconditioner on Matrix Lie Group for SGD](https://arxiv.org/abs/1809.10232), 2018;
        Li, [Preconditioned Stochastic Gradient Descent](https://arxiv.org/abs/1512.04202), 2015; Walters et al., the
        [code](https://github.com/evanatyourservice/kron_torch) of Kron, 2024.
    """

    learning_rate: Hyperparameter = number(3e-4)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    weight_decay: Hyperparameter = number(0.0)
    preconditioner_update_probability: Hyperparameter = number(
        ExponentialDecay(1.0, 1, math.exp(-0.001), 500, end_value=0.03), needs=FRACTION
    )
    precond_lr: Hyperparameter = number(0.1)
    precond_init_scale: Hyperparameter = number(1.0)
    max_size_triangular: int = eqx.field(static=True, default=8192, metadata={"least": 0})
    min_ndim_triangular: int = eqx.field(static=True, default=2, metadata={"least": 0})
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    _: KW_ONLY
    diagonal: str = choice(DIAGONAL, "none")
    momentum_into_precond_update: bool = eqx.field(static=True, default=True)
    key: Any = key()
    block_size: int | None = eqx.field(static=True, default=None, metadata={"least": 1})

    def transform(self) -> Chain:
        return Chain(
            self._part(ScaleByKron),
            AddDecayedWeights(self.weight_decay, with_two_axes if self.mask is None else self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
