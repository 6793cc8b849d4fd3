"""Muon whose orthogonalized matrices are normalized by their second moments: NorMuon and AdaMuon.

`ScaleByMuon` orthogonalizes, on the devices of a mesh. What follows here is a few operations on each array by itself:
a second moment of the orthogonalized matrices, the division by its root, and the norm that each matrix then gets.
"""

import abc
import functools
import math
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.counted import AbstractCounted
from .._protocol.fields import Number, OptionalNumber, choice, number, numbers
from .._support.arithmetic import (
    abs_sq,
    moment,
    ratio,
    real_dtype,
    safe_increment,
    safe_sqrt,
    scalar_like,
    second_moment_like,
)
from .._support.checks import DECAY
from .._support.module import AbstractState, from_same_fields, like_params, shared
from .._support.types import Count, Params, Updates
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from ..tree._align import align
from ..tree._math import widened
from .matrices import Matrix, matrices_as
from .muon import MuonDimensionNumbers, MuonState, ScaleByMuon
from .spread import axis_names, on_auto_axes


class NormalizedMuonState(AbstractState):
    """State of `ScaleByNorMuon` and `ScaleByAdaMuon`: momentum, second moment of the orthogonalized matrices, count.

    The moments are None for leaves that aren't matrices. The second moment of NorMuon has one entry for each output.
    """

    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    count: Count = shared()


class AbstractNormalizedMuon(AbstractCounted):
    """The direction of Muon, divided by the root of its second moment, with a norm for each matrix.

    A subclass defines over which entries the second moment is a mean, and the norm.
    """

    @abc.abstractmethod
    def second_moment(self) -> tuple[Any, Any]:
        """Return the exponential decay rate of the second moment, and the number that is added to its root."""

    def muon(self) -> ScaleByMuon:
        """Return the transform that orthogonalizes."""
        return from_same_fields(ScaleByMuon, self)

    @abc.abstractmethod
    def mean(self, matrix: Matrix, x: Array) -> Array:
        """Return the means of an array whose second moments are kept, in a shape that broadcasts with the array."""

    @abc.abstractmethod
    def scaled(self, before: Array, x: Array) -> Array:
        """Return matrices with the right norm.

        Args:
            before: the orthogonalized matrices.
            x: the same, divided by the root of their second moment.
        """

    def init(self, params: Params) -> NormalizedMuonState:
        """Return zeros for every matrix, and no state for other leaves."""
        muon = self.muon()
        leaves, treedef = jtu.tree_flatten(params)
        nu = [
            None if matrix is None else self.mean(matrix, second_moment_like(p))
            for p, matrix in zip(leaves, muon.matrices(params), strict=True)
        ]
        return NormalizedMuonState(muon.init(params).mu, treedef.unflatten(nu), jnp.zeros((), jnp.int32))

    def update(
        self, updates: Updates, state: NormalizedMuonState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, NormalizedMuonState]:
        """Return the normalized orthogonal matrices, and the new state."""
        now = self.at(state)
        muon = now.muon()
        # Not rounded in between, where the updates are bfloat16.
        found, new = muon.update(widened(updates), MuonState(state.mu, count=state.count), params, **extra)
        leaves, treedef = jtu.tree_flatten(updates)
        nu, rebuild = align(state.nu, updates, f"{type(self).__name__}.update")
        step = jax.jit(functools.partial(_normalized, now), static_argnums=0)
        for i, (matrix, u) in enumerate(zip(muon.matrices(updates), jtu.tree_leaves(found), strict=True)):
            if matrix is not None:
                u, nu[i] = step(matrix, u, nu[i])
                leaves[i] = u.astype(leaves[i].dtype)
        return treedef.unflatten(leaves), NormalizedMuonState(new.mu, rebuild(nu), safe_increment(state.count))


def _normalized(now: AbstractNormalizedMuon, matrix: Matrix, u: Array, nu: Array) -> tuple[Array, Array]:
    """The normalized update of one leaf, and its new second moment."""
    real = real_dtype(u.dtype)

    def normalized(now: AbstractNormalizedMuon, arrays: list[Array]) -> list[Array]:
        u, nu = arrays
        b2, eps = (scalar_like(x, u) for x in now.second_moment())
        new = moment(b2, nu.astype(real), now.mean(matrix, abs_sq(u)))
        x = u / (safe_sqrt(new) + eps).astype(u.dtype)
        pieces = [now.scaled(*pair) for pair in zip(matrix.pieces(u), matrix.pieces(x), strict=True)]
        return [matrix.joined(pieces), new.astype(nu.dtype)]

    u, nu = on_auto_axes(normalized, now, [u, nu])
    return u, nu


def _norm(x: Array) -> Array:
    """The Frobenius norm of each matrix."""
    return safe_sqrt(jnp.sum(abs_sq(x), axis=(-2, -1), keepdims=True))


class ScaleByNorMuon(AbstractNormalizedMuon):
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

    def second_moment(self) -> tuple[Any, Any]:
        return self.b2, self.moment_eps

    def mean(self, matrix: Matrix, x: Array) -> Array:
        return jnp.mean(x, axis=matrix.rows, keepdims=True)

    def scaled(self, before: Array, x: Array) -> Array:
        return ratio(_norm(before), _norm(x)).astype(x.dtype) * x


class ScaleByAdaMuon(AbstractNormalizedMuon):
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

    def second_moment(self) -> tuple[Any, Any]:
        return self.beta if self.b2 is None else self.b2, self.moment_eps

    def mean(self, matrix: Matrix, x: Array) -> Array:
        del matrix
        return x

    def scaled(self, before: Array, x: Array) -> Array:
        del before
        norm = _norm(x)
        rms, eps = (jnp.asarray(each).astype(norm.dtype) for each in (self.consistent_rms, self.moment_eps))
        rows, columns = x.shape[-2:]
        return (ratio(rms * math.sqrt(rows * columns), norm + eps)).astype(x.dtype) * x
