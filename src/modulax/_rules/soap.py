"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import in_dtype
from .._transforms.decayed_step import DecayedStep
from .._transforms.matrices import matrices_as
from .._transforms.outer_products import average, outer_products, root_mean_square, zero_products
from ..authoring._optimizers import AbstractWeightDecay
from ..linalg._eigenbasis import next_eigenbasis, permute
from ..linalg._products import SIDES, rare_product, rotated, rotated_back
from .muon import MuonDimensionNumbers

_LEAST = 1e-30  # added to the root of the mean square that a direction is divided by


class SOAPState(ma.AbstractState):
    """State of `ScaleBySOAP`: moments in the eigenbases, averages of the outer products, and the eigenbases.

    `left` and `right` are None for leaves that aren't matrices, and for sides longer than `max_precond_dim`.
    """

    mu: ma.PyTree = ma.like_params()
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    left: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    right: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    left_basis: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True)
    right_basis: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractSOAPMoments(ma.AbstractFields):
    r"""The hyperparameters of the averages in SOAP.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        shampoo_beta: exponential decay rate $\beta$ of the outer products; by default $\beta_2$.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
    """

    b1: ma.Number = ma.number(0.95, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.95, needs=ma.DECAY)
    shampoo_beta: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    eps: ma.Number = ma.number(1e-8)


class AbstractSOAPBases(AbstractSOAPMoments):
    r"""The hyperparameters of the averages and the bases in SOAP.

    Args:
        precondition_frequency: number $k$ of steps between two improvements of the bases.
        max_precond_dim: the longest side of a matrix that gets a basis; the other side may still have one.
    """

    precondition_frequency: ma.Number = ma.number(10, needs=ma.WHOLE)
    max_precond_dim: int = ma.static(10_000, least=1)


class AbstractSOAP(AbstractSOAPBases):
    r"""The hyperparameters of SOAP.

    Args:
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`; by default the roles of the
            parameters tell which axes are rows and columns, and all arrays with both are matrices, embeddings too.
        normalize_grads: whether the direction of each matrix is divided by the root of its mean square.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.
    """

    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))
    _: ma.KW_ONLY
    normalize_grads: bool = ma.static(False)
    correct_bias: bool = ma.static(True)
    preconditioner_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleBySOAP(AbstractSOAP, ma.AbstractMatrixwise[SOAPState]):
    r"""Adam in the eigenbasis of Shampoo's preconditioner: the direction of SOAP.

    $$
    \begin{aligned}
    g'_t &= Q_L^\top g_t Q_R \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g'_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g'_t|^2 \\
    u_t &= \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, Q_L \frac{m_t}{\sqrt{v_t} + \varepsilon} Q_R^\top \\
    L_t &= \beta L_{t-1} + (1 - \beta) g_t g_t^\top, \qquad R_t = \beta R_{t-1} + (1 - \beta) g_t^\top g_t
    \end{aligned}
    $$

    The first call computes $L$, $R$ and their eigenvectors $Q_L$, $Q_R$ from the first gradient, and returns zeros:
    no gradient is projected on a basis that it has determined. Every $k$ steps, after the update, one step of a power
    iteration with a QR decomposition improves the bases, $Q \leftarrow \operatorname{QR}(L Q)$, with the vectors sorted
    by their estimated eigenvalues; $m$ is carried over to the new bases, and the entries of $v$ are sorted. All other
    leaves are trained by Adam, also from the second call on. On a TPU, whose compiler takes minutes for an
    eigendecomposition, the first bases come from up to 32 orthogonal iterations.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        shampoo_beta: exponential decay rate $\beta$ of the outer products; by default $\beta_2$.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        precondition_frequency: number $k$ of steps between two improvements of the bases.
        max_precond_dim: the longest side of a matrix that gets a basis; the other side may still have one.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`; by default the roles of the
            parameters tell which axes are rows and columns, and all arrays with both are matrices, embeddings too.
        normalize_grads: whether the direction of each matrix is divided by the root of its mean square.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Vyas et al., [SOAP: Improving and Stabilizing Shampoo using Adam](https://arxiv.org/abs/2409.11321), 2024, and
        the authors' [code](https://github.com/nikhilvyas/SOAP).
    """

    factors: ClassVar = {"left": "left_basis", "right": "right_basis"}
    carried: ClassVar = ("mu", "nu")
    others: ClassVar = "array"

    def init_matrix(self, x):
        left, right = zero_products(x, self.preconditioner_dtype, self.max_precond_dim)
        return SOAPState(ma.zeros_in(x, None), ma.second_moment_like(x), left, right, left, right)

    def init_other(self, x):
        return SOAPState(ma.zeros_in(x, None), ma.second_moment_like(x), None, None, None, None)

    def prepare(self, count):
        t = jnp.maximum(count, 1)  # the first call is no step
        scale = ma.safe_sqrt(ma.bias(self.b2, t)) / ma.bias(self.b1, t)
        return scale if self.correct_bias else jnp.ones_like(scale), count == 0

    def update_matrix(self, now, g, s, p):
        del p
        scale, is_first = now
        x = rotated(g, s.left_basis, s.right_basis)
        mu, nu = average(self.b1, s.mu, x), average(self.b2, s.nu, ma.abs_sq(x))
        u = rotated_back(scale * mu / (ma.safe_sqrt(nu) + self.eps), s.left_basis, s.right_basis)
        if self.normalize_grads:
            u = u / (_LEAST + root_mean_square(u))
        beta = self.b2 if self.shampoo_beta is None else self.shampoo_beta
        left, right = outer_products(beta, g, s)
        # The first gradient determines the bases, and moves nothing.
        pairs = ((jnp.zeros_like(u), u), (s.mu, mu), (s.nu, nu))
        u, mu, nu = (jax.lax.select(is_first, x, in_dtype(y, x.dtype)) for x, y in pairs)
        return u, SOAPState(mu, nu, left, right, s.left_basis, s.right_basis)

    def improve_factor(self, now, x, factor, about):
        del about
        _, is_first = now
        return next_eigenbasis(x, factor, is_first)

    def carry_matrix(self, now, old, new, beside):
        del now
        mu, nu = rotated_back(old.mu, old.left_basis, old.right_basis, rare_product), old.nu
        for side in SIDES:
            if side in beside:
                (order,) = beside[side]
                nu = permute(nu, order, side)
        return dataclasses.replace(new, mu=rotated(mu, new.left_basis, new.right_basis, rare_product), nu=nu)


class SOAP(
    AbstractSOAP, ma.AbstractDecayed, AbstractSOAPBases, AbstractWeightDecay, AbstractSOAPMoments, ma.AbstractRated
):
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
        precondition_frequency: number $k$ of steps between two improvements of the bases.
        max_precond_dim: the longest side of a matrix that gets a basis; the other side may still have one.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`; by default the roles of the
            parameters tell which axes are rows and columns, and all arrays with both are matrices, embeddings too.
        normalize_grads: whether the direction of each matrix is divided by the root of its mean square.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Vyas et al., [SOAP: Improving and Stabilizing Shampoo using Adam](https://arxiv.org/abs/2409.11321), 2024, and
        the authors' [code](https://github.com/nikhilvyas/SOAP).
    """

    direction = ScaleBySOAP
    learning_rate: ma.Number = ma.number(3e-3)
    weight_decay: ma.Number = ma.number(0.01)

    def transform(self) -> ma.Chain:
        return ma.Chain(*self.directions(), self._part(DecayedStep, after=True, start=1))
