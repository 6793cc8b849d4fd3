"""The direction of Dion: an orthonormal matrix of low rank, by one power step on a momentum that keeps the rest."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, choice, number
from .._support.arithmetic import abs_sq, at_least_float32, ratio, safe_increment, safe_sqrt, scalar_like, zeros_in
from .._support.checks import DECAY
from .._support.keys import key, next_keys
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from ..linalg._eigenbasis import largest_entry, orthonormalized
from ..linalg._products import adjoint, product
from ..tree._align import align
from ..tree._math import widened
from .batches import in_batches
from .matrices import Matrix, matrices_as
from .matrix_rule import AbstractMatrixRule
from .muon import MuonDimensionNumbers

BASES = ("shorter", "inputs")


def _weight(rule: Any) -> Any:
    """What makes the momentum an average of the gradients: of full rank, it is their sum by powers of β from β on."""
    is_full = rule.rank is None and rule.rank_fraction == 1
    # What directions of a lower rank leave out does not decay. With β = 0, the momentum is zero.
    return ratio(1 - rule.beta, rule.beta) if is_full else 0


class DionState(AbstractState):
    """State of `ScaleByDion`: the momentum, a basis of its row or column space, and the step count.

    Both are None for leaves that aren't matrices. The columns of `basis` have about unit length. Where several matrices
    are joined in one array, it has an axis for those of equal size, or is a tuple of such bases.
    """

    mu: PyTree = like_params(moment=_weight)
    basis: PyTree = like_params(exact=True)
    count: Count = shared()


class ScaleByDion(AbstractMatrixRule):
    r"""Approximates the orthogonal factor of the momentum of every matrix by one of low rank: the direction of Dion.

    $$
    \begin{aligned}
    B_t &= M_{t-1} + g_t \\
    P_t &= \operatorname{qr}(B_t Q_{t-1}), \qquad R_t = B_t^\top P_t \\
    M_t &= B_t - (1 - \beta) P_t R_t^\top \\
    Q_{t,j} &= R_{t,j} / (\|R_{t,j}\| + \varepsilon), \qquad u_t = P_t Q_t^\top
    \end{aligned}
    $$

    where $\operatorname{qr}$ is the orthonormal factor of the QR decomposition, $Q$ has $r$ columns $j$, and
    $M_0 = 0$. The entries of $Q_0$ are standard normal. The part of the momentum outside the $r$ directions stays in
    it: this is error feedback. While a momentum is zero, the update is zero, and $Q$ does not change. Leaves that
    aren't matrices pass through unchanged. Query, key and value in one array are three matrices.

    Args:
        beta: decay rate $\beta$ of the part of the momentum that the update has.
        eps: $\varepsilon$, added to the norms of the columns of $R$.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        rank: the rank $r$, at most the length of the shorter side; None for a fraction of it.
        rank_fraction: this fraction of the shorter side, rounded up.
        rank_multiple_of: a number of which this rank is made a multiple, also rounded up.
        power_iterations: number of times that $P$ and $R$ are computed, each time with the last $R$ in place of $Q$.
        basis: the side of the matrix that $Q$ belongs to, `"shorter"` or `"inputs"`.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`.
        key: a seed, or a JAX key, for $Q_0$.

    References:
        Ahn et al., [Dion: Distributed Orthonormalized Updates](https://arxiv.org/abs/2504.05295), 2025, and the
        authors' [code](https://github.com/microsoft/dion).
    """

    beta: Number = number(0.95, needs=DECAY)
    eps: Number = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    rank: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    rank_fraction: float = eqx.field(static=True, default=1.0)
    rank_multiple_of: int = eqx.field(static=True, default=1, metadata={"least": 1})
    power_iterations: int = eqx.field(static=True, default=1, metadata={"least": 1})
    basis: str = choice(BASES, "shorter")
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    key: Any = key()

    def check(self) -> None:
        if not 0 < self.rank_fraction <= 1:
            raise ValueError(f"`rank_fraction` must be in (0, 1], got {self.rank_fraction!r}.")

    def init(self, params: Params) -> DionState:
        """Return momenta of zeros, and random bases."""
        leaves, treedef = jtu.tree_flatten(params)
        matrices = self._matrices(params, hidden=True)
        _, keys = next_keys(jnp.asarray(self.key), len(leaves))
        rows = zip(leaves, matrices, keys, strict=True)
        mu = [None if m is None else zeros_in(p, self.mu_dtype) for p, m in zip(leaves, matrices, strict=True)]
        basis = [None if m is None else self._initial(p, m, k) for p, m, k in rows]
        return DionState(treedef.unflatten(mu), treedef.unflatten(basis), jnp.zeros((), jnp.int32))

    def _direction(self, updates: Updates, state: DionState) -> tuple[Updates, DionState]:
        now = self.at(state)
        leaves, treedef = jtu.tree_flatten(updates)
        mu, rebuild_mu = align(state.mu, updates, "ScaleByDion.update")
        bases, rebuild_bases = align(state.basis, updates, "ScaleByDion.update")
        matrices = {i: m for i, m in enumerate(self._matrices(updates, hidden=True)) if m is not None}
        wide = jtu.tree_leaves(widened(updates))
        pieces = {i: m.pieces(wide[i] + mu[i].astype(wide[i].dtype)) for i, m in matrices.items()}
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            sums = [self._turned(x, x) for xs in pieces.values() for x in xs]
            found = iter(in_batches(jax.jit(now._step), sums, [q for i in pieces for q in jtu.tree_leaves(bases[i])]))
        for i, matrix in matrices.items():
            rows = [(self._turned(u, x), self._turned(m, x), q) for x, (u, m, q) in zip(pieces[i], found, strict=False)]
            u, kept, basis = zip(*rows, strict=True)
            leaves[i] = matrix.joined(u).astype(leaves[i].dtype)
            mu[i], bases[i] = matrix.joined(kept).astype(mu[i].dtype), _one_or_all(basis)
        new = DionState(rebuild_mu(mu), rebuild_bases(bases), safe_increment(state.count))
        return treedef.unflatten(leaves), new

    def _initial(self, p: Array, matrix: Matrix, k: Array) -> Array | tuple[Array, ...]:
        plain = jax.ShapeDtypeStruct(p.shape, p.dtype)  # of any sharding
        pieces = jax.eval_shape(matrix.pieces, plain)
        keys = [k] if len(pieces) == 1 else jax.random.split(k, len(pieces))
        dtype = at_least_float32(p.dtype)
        return _one_or_all([self._random(x.shape, dtype, k) for x, k in zip(pieces, keys, strict=True)])

    def _random(self, shape: tuple[int, ...], dtype: DTypeLike, k: Array) -> Array:
        *batch, rows, columns = shape
        length = rows if self._is_turned(rows, columns) else columns
        return jax.random.normal(k, (*batch, length, self._rank(min(rows, columns))), dtype)

    def _rank(self, most: int) -> int:
        unit = self.rank_multiple_of
        rank = self.rank or unit * math.ceil(self.rank_fraction * most / unit)
        return min(rank, most)

    def _is_turned(self, inputs: int, outputs: int) -> bool:
        """Whether the basis belongs to the inputs, which are rows."""
        return self.basis == "inputs" or inputs <= outputs

    def _turned(self, x: Array, like: Array) -> Array:
        """Matrices with the side of the basis as columns, by the shape of the matrices of a leaf; and the way back."""
        return jnp.swapaxes(x, -2, -1) if self._is_turned(*like.shape[-2:]) else x

    def _step(self, x: Array, basis: Array) -> tuple[Array, Array, Array]:
        """The updates of a batch of matrices, their new momenta and bases."""
        beta, eps = (scalar_like(y, x) for y in (self.beta, self.eps))
        largest = largest_entry(x)
        b = x / largest.astype(x.dtype)  # no square of it overflows or underflows
        p, r = x, basis.astype(x.dtype)
        for _ in range(self.power_iterations):
            y = product(b, r)
            p = orthonormalized(y / largest_entry(y).astype(x.dtype))
            r = product(adjoint(b), p)
        norms = safe_sqrt(jnp.sum(abs_sq(r), axis=-2, keepdims=True))
        q = r * ratio(jnp.ones_like(norms), norms + eps / largest).astype(x.dtype)
        is_zero = jnp.all(x == 0, axis=(-2, -1), keepdims=True)
        u = jnp.where(is_zero, 0, product(p, adjoint(q)))
        kept = x - (1 - beta) * largest * product(p, adjoint(r))
        return u, kept, jnp.where(is_zero, basis, q.astype(basis.dtype))


def _one_or_all(arrays: Sequence[Array]) -> Array | tuple[Array, ...]:
    """What a leaf has: an array, or a tuple where matrices of several sizes are joined."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
