"""Muon whose orthogonalized matrices are normalized by their second moments: NorMuon and AdaMuon."""

import math
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, OptionalNumber, choice, number, numbers
from .._support.arithmetic import abs_sq, moment, ratio, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Shared
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .matrices import matrices_as
from .muon import AbstractMuon, MuonDimensionNumbers
from .spread import axis_names


class NormalizedMuonState(AbstractState):
    """State of `ScaleByNorMuon` and `ScaleByAdaMuon`: momentum, second moment of the orthogonalized matrices, count.

    The moments are None for leaves that aren't matrices. The second moment of NorMuon has one entry for each output.
    """

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    count: Shared[Count] = shared(None)


def _norm(x: Array) -> Array:
    """The Frobenius norm of each matrix."""
    return safe_sqrt(jnp.sum(abs_sq(x), axis=(-2, -1), keepdims=True))


class ScaleByNorMuon(AbstractMuon[NormalizedMuonState]):
    r"""Orthogonalizes the momentum of every matrix, and gives all its outputs steps of a similar size: NorMuon.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top \\
    v_{t,j} &= \beta_2 v_{t-1,j} + (1 - \beta_2) \frac{1}{m} \sum_{i=1}^m |o_{t,ij}|^2 \\
    \hat o_{t,ij} &= \frac{o_{t,ij}}{\sqrt{v_{t,j}} + \bar\varepsilon}, \qquad
        u_t = \frac{\|o_t\|_F}{\|\hat o_t\|_F} \hat o_t
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) whose columns $j$ are outputs, the neurons. $o_t$ is approximated by
    `linalg.orthogonalize`, as in `ScaleByMuon`. Leaves that aren't matrices pass through unchanged.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`.
        per_head: whether each head of a query, key or value is a matrix, as in `ScaleByMuon`.
        dtype: dtype of the matrices within the iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Li et al., [NorMuon: Making Muon more efficient and scalable](https://arxiv.org/abs/2510.05491), 2025, and the
        authors' [code](https://github.com/zichongli5/NorMuon).
    """

    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    beta: Number = number(0.95, needs=DECAY)
    b2: Number = number(0.95, needs=DECAY)
    eps: Number = number(1e-8)
    moment_eps: Number = number(1e-10)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    nesterov: bool = eqx.field(static=True, default=True)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    per_head: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def init_matrix(self, x):
        nu = jnp.mean(second_moment_like(x), axis=-2, keepdims=True)
        return NormalizedMuonState(zeros_in(x, self.mu_dtype), nu)

    def update_matrix(self, now, g, s, p):
        del now, p
        (o,) = g
        nu = moment(self.b2, s.nu, jnp.mean(abs_sq(o), axis=-2, keepdims=True))
        x = o / (safe_sqrt(nu) + self.moment_eps)
        return ratio(_norm(o), _norm(x)) * x, NormalizedMuonState(s.mu, nu)


class ScaleByAdaMuon(AbstractMuon[NormalizedMuonState]):
    r"""Orthogonalizes the signs of the momentum of every matrix, and divides by a second moment as Adam does: AdaMuon.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad \operatorname{sign}(d_t) = U \Sigma V^\top \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |o_t|^2 \\
    \hat o_t &= \frac{o_t}{\sqrt{v_t} + \bar\varepsilon}, \qquad
        u_t = \frac{\rho \sqrt{m n}}{\|\hat o_t\|_F + \bar\varepsilon} \hat o_t
    \end{aligned}
    $$

    for a matrix of $m$ rows and $n$ columns. The root mean square of its update is $\rho$. $o_t$ is approximated by
    `linalg.orthogonalize`, as in `ScaleByMuon`. Leaves that aren't matrices pass through unchanged.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment; by default $\beta$.
        eps: added to the norm that a matrix is divided by before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment and to the norm.
        consistent_rms: $\rho$, the root mean square of an update.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        sign: whether the signs of the entries of $d_t$ are orthogonalized, and not $d_t$ itself.
        preconditioning: how a matrix is scaled before the first iteration, as in `ScaleByMuon`.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`.
        per_head: whether each head of a query, key or value is a matrix, as in `ScaleByMuon`.
        dtype: dtype of the matrices within the iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Si et al., [AdaMuon: Adaptive Muon Optimizer](https://arxiv.org/abs/2507.11005), 2025, and the authors'
        [code](https://github.com/Chongjie-Si/AdaMuon).
    """

    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    beta: Number = number(0.95, needs=DECAY)
    b2: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Number = number(1e-8)
    moment_eps: Number = number(1e-8)
    consistent_rms: Number = number(0.2)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    nesterov: bool = eqx.field(static=True, default=True)
    sign: bool = eqx.field(static=True, default=True)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    per_head: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def init_matrix(self, x):
        return NormalizedMuonState(zeros_in(x, self.mu_dtype), second_moment_like(x))

    def direction(self, now, g, mu):
        d = super().direction(now, g, mu)
        return jnp.sign(d) if self.sign else d

    def update_matrix(self, now, g, s, p):
        del now, p
        (o,) = g
        nu = moment(self.beta if self.b2 is None else self.b2, s.nu, abs_sq(o))
        x = o / (safe_sqrt(nu) + self.moment_eps)
        norm = self.consistent_rms * math.sqrt(math.prod(o.shape[-2:]))
        return ratio(norm, _norm(x) + self.moment_eps) * x, NormalizedMuonState(s.mu, nu)
