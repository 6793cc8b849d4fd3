"""EShampoo, eigenvalue-corrected Shampoo: SOAP in the form of Distributed Shampoo."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import is_due, safe_increment
from .._transforms.matrices import matrices_as
from .._transforms.outer_products import accumulated, outer_products, zero_products
from ..authoring._optimizers import AbstractWeightDecay
from ..linalg._eigenbasis import identities, largest_entry, qr_iterations, renewed_eigenbasis
from ..linalg._products import rotated, rotated_back
from .muon import MuonDimensionNumbers
from .shampoo import AbstractShampooMoments, averages_or_sums, bias_of, filtered, first_due


class EShampooState(ma.AbstractState):
    """State of `ScaleByEShampoo`: momentum, second moment in the eigenbases, outer products, and their eigenbases.

    The matrices are those of blocks, as in `ShampooState`, and None for leaves that aren't matrices.
    """

    mu: ma.PyTree = ma.like_params(exact=True, moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True, form=averages_or_sums)
    left: ma.PyTree = ma.like_params(exact=True, per_matrix=True, form=averages_or_sums)
    right: ma.PyTree = ma.like_params(exact=True, per_matrix=True, form=averages_or_sums)
    left_basis: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True)
    right_basis: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractEShampooMoments(AbstractShampooMoments):
    r"""The hyperparameters of the averages in EShampoo.

    Args:
        b2: exponential decay rate $\beta_2$ of the outer products and of the second moment; 1 for their sums.
        eps: $\varepsilon$, added to the root of the corrected second moment, which is at least $10^{-6}$ times its
            largest entry for a matrix in float32.
    """

    b2: ma.Number = ma.number(0.999, needs=ma.FRACTION)


class AbstractEShampoo(AbstractEShampooMoments):
    r"""The hyperparameters of EShampoo.

    Args:
        precondition_frequency: number $k$ of steps between two computations of the bases.
        start: the first step with bases; by default $k$.
        block_size: the longest side of a block of a matrix; each block has its own bases.
        qr_iterations: number of iterations of the QR algorithm that improve the bases; None for an eigendecomposition.
            The iterations begin with identities, and $\varepsilon$ is on the diagonal of $L$ and $R$. As in the
            authors' code, vectors are sorted from the smallest eigenvalue on, which slows them down: on random
            gradients, one iteration left up to 0.8 of the norm of $Q_L^\top L Q_L$ off the diagonal, and three at most
            0.02.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.
    """

    precondition_frequency: ma.Number = ma.number(100, needs=ma.WHOLE)
    start: int | None = ma.static(None, least=1)
    block_size: int = ma.static(8192, least=1)
    _: ma.KW_ONLY
    qr_iterations: int | None = ma.static(None, least=1)
    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))
    preconditioner_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByEShampoo(AbstractEShampoo, ma.AbstractMatrixwise[EShampooState]):
    r"""Adam in the eigenbasis of Shampoo's preconditioner, with a momentum outside it: the direction of EShampoo.

    $$
    \begin{aligned}
    L_t &= \beta_2 L_{t-1} + (1 - \beta_2) g_t g_t^\top, \qquad R_t = \beta_2 R_{t-1} + (1 - \beta_2) g_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |Q_L^\top g_t Q_R|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= Q_L \frac{Q_L^\top \hat m_t Q_R}{\sqrt{\hat v_t} + \varepsilon} Q_R^\top
    \end{aligned}
    $$

    The columns of $Q_L$ and $Q_R$ are the eigenvectors of $L$ and $R$, computed every $k$ steps, from step `start` on,
    before the gradient of this step is projected; until then they are identities. The entries of $v$ keep their places.
    With $\beta_2 = 1$, $L$, $R$ and $v$ are sums. Leaves that aren't matrices are trained by Adam. A matrix with a
    longer side than `block_size` is divided into blocks, each of which has its own bases.

    `ScaleBySOAP` uses the bases of the step before, in which it keeps the momentum. On a TPU, whose compiler takes
    minutes for an eigendecomposition, the bases come from up to 32 orthogonal iterations from those before.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products and of the second moment; 1 for their sums.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the root of the corrected second moment, which is at least $10^{-6}$ times its
            largest entry for a matrix in float32.
        precondition_frequency: number $k$ of steps between two computations of the bases.
        start: the first step with bases; by default $k$.
        block_size: the longest side of a block of a matrix; each block has its own bases.
        qr_iterations: number of iterations of the QR algorithm that improve the bases; None for an eigendecomposition.
            The iterations begin with identities, and $\varepsilon$ is on the diagonal of $L$ and $R$. As in the
            authors' code, vectors are sorted from the smallest eigenvalue on, which slows them down: on random
            gradients, one iteration left up to 0.8 of the norm of $Q_L^\top L Q_L$ off the diagonal, and three at most
            0.02.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Eschenhagen et al., [Purifying Shampoo: Investigating Shampoo's Heuristics by Decomposing its
        Preconditioner](https://arxiv.org/abs/2506.03595), 2025, and the
        [code](https://github.com/facebookresearch/optimizers) of Distributed Shampoo.
    """

    factors: ClassVar = {"left": "left_basis", "right": "right_basis"}
    improves_first: ClassVar = True
    others: ClassVar = "array"

    def init_matrix(self, x):
        left, right = zero_products(x, self.preconditioner_dtype)
        mu = ma.zeros_in(x, ma.at_least_float32(x.dtype))
        return EShampooState(mu, ma.second_moment_like(x), left, right, identities(left), identities(right))

    def init_other(self, x):
        mu = ma.zeros_in(x, ma.at_least_float32(x.dtype))
        return EShampooState(mu, ma.second_moment_like(x), None, None, None, None)

    def prepare(self, count):
        return count + 1

    def is_time(self, now, count):
        step, start = safe_increment(count), first_due(self)
        return (step == start) | ((step > start) & is_due(step, self.precondition_frequency))

    def accumulate_matrix(self, now, g, s):
        left, right = outer_products(self.b2, g, s)
        return dataclasses.replace(s, left=left, right=right)

    def improve_factor(self, now, x, factor, about):
        if about.filled is not None:  # their eigenvalues are above all others
            most = 2 * jnp.trace(x, axis1=-2, axis2=-1)[..., None, None]
            x = x + most * about.filled * identities(x)
        if self.qr_iterations is None:
            return (jnp.flip(renewed_eigenbasis(x, factor), axis=-1),)
        return (qr_iterations(x / bias_of(self.b2, now) + self.eps * identities(x), factor, self.qr_iterations),)

    def filter_leaf(self, now, g, s):
        x, s = filtered(self, now, g, s)
        return (g, x), s

    def update_matrix(self, now, g, s, p):
        x, d = (rotated(y, s.left_basis, s.right_basis) for y in g)
        nu = accumulated(self.b2, s.nu, ma.abs_sq(x))
        root = ma.safe_sqrt(nu / bias_of(self.b2, now))
        if s.left is not None:
            # Where a projected gradient is zero but for rounding errors, that of the momentum is another such error:
            # their quotient is any number. SOAP's momentum is an average of projected gradients.
            root = jnp.maximum(root, 8 * jnp.finfo(root.dtype).eps * largest_entry(root))
        return rotated_back(d / (root + self.eps), s.left_basis, s.right_basis), dataclasses.replace(s, nu=nu)


class EShampoo(ma.AbstractDecayed, AbstractEShampoo, AbstractWeightDecay, AbstractEShampooMoments, ma.AbstractRated):
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
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the root of the corrected second moment, which is at least $10^{-6}$ times its
            largest entry for a matrix in float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number $k$ of steps between two computations of the bases.
        start: the first step with bases; by default $k$.
        block_size: the longest side of a block of a matrix; each block has its own bases.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        qr_iterations: number of iterations of the QR algorithm that improve the bases; None for an eigendecomposition.
            The iterations begin with identities, and $\varepsilon$ is on the diagonal of $L$ and $R$. As in the
            authors' code, vectors are sorted from the smallest eigenvalue on, which slows them down: on random
            gradients, one iteration left up to 0.8 of the norm of $Q_L^\top L Q_L$ off the diagonal, and three at most
            0.02.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Eschenhagen et al., [Purifying Shampoo: Investigating Shampoo's Heuristics by Decomposing its
        Preconditioner](https://arxiv.org/abs/2506.03595), 2025, and the
        [code](https://github.com/facebookresearch/optimizers) of Distributed Shampoo.
    """

    direction = ScaleByEShampoo
    learning_rate: ma.Number = ma.number(1e-3)
    weight_decay: ma.Number = ma.number(1e-5)
