"""The direction of Dion: an orthonormal matrix of low rank, by one power step on a momentum that keeps the rest."""

import math
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, choice, number
from .._protocol.masks import AbstractLabels
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import abs_sq, at_least_float32, ratio, safe_increment, safe_sqrt, scalar_like, zeros_in
from .._support.checks import DECAY
from .._support.keys import key, next_keys
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from ..linalg._products import adjoint
from ..tree._align import align
from ..tree._math import widened
from .matrices import Matrix, matrices_as, matrices_of
from .muon import MuonDimensionNumbers
from .outer_products import in_batches, largest_entry, orthonormalized, product
from .spread import tree_on_auto_axes

BASES = ("shorter", "inputs")


class DionState(AbstractState):
    """State of `ScaleByDion`: the momentum, a basis of its row or column space, and the step count.

    Both are None for leaves that aren't matrices. The columns of `basis` have about unit length.
    """

    mu: PyTree = like_params(moment=1.0)
    basis: PyTree = like_params(exact=True)
    count: Count = shared()


class ScaleByDion(AbstractTransform):
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
    $M_0 = 0$. The entries of $Q_0$ are standard normal. What the $r$ directions leave out stays in the momentum
    entirely: this is the feedback of the error. While a momentum is zero, so is the update, and $Q$ stays as it is.
    Leaves that aren't matrices pass through unchanged.

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

    clock: ClassVar[Clock] = "steps"

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
        matrices = self._matrices(params)
        _, keys = next_keys(jnp.asarray(self.key), len(leaves))
        rows = zip(leaves, matrices, keys, strict=True)
        mu = [None if m is None else zeros_in(p, self.mu_dtype) for p, m in zip(leaves, matrices, strict=True)]
        basis = [None if m is None else self._initial(p, m, k) for p, m, k in rows]
        return DionState(treedef.unflatten(mu), treedef.unflatten(basis), jnp.zeros((), jnp.int32))

    def update(
        self, updates: Updates, state: DionState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, DionState]:
        """Return the orthogonal matrices of low rank, and the new state."""
        del params, extra
        return tree_on_auto_axes(lambda now, tree: now._direction(*tree), self, (updates, state))

    def _direction(self, updates: Updates, state: DionState) -> tuple[Updates, DionState]:
        now = self.at(state)
        leaves, treedef = jtu.tree_flatten(updates)
        mu, rebuild_mu = align(state.mu, updates, "ScaleByDion.update")
        bases, rebuild_bases = align(state.basis, updates, "ScaleByDion.update")
        matrices = {i: m for i, m in enumerate(self._matrices(updates)) if m is not None}
        wide = jtu.tree_leaves(widened(updates))
        sums = [self._turned(m, wide[i] + mu[i].astype(wide[i].dtype)) for i, m in matrices.items()]
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            found = in_batches(jax.jit(now._step), sums, [bases[i] for i in matrices])
        for (i, matrix), (u, kept, basis) in zip(matrices.items(), found, strict=True):
            leaves[i] = self._turned_back(matrix, u).astype(leaves[i].dtype)
            mu[i], bases[i] = self._turned_back(matrix, kept).astype(mu[i].dtype), basis
        new = DionState(rebuild_mu(mu), rebuild_bases(bases), safe_increment(state.count))
        return treedef.unflatten(leaves), new

    def at(self, state: DionState) -> "ScaleByDion":
        """Return the transform with every schedule replaced by its value at the next step.

        Args:
            state: the state of this transform.
        """
        return resolve(self, state.count)

    def _matrices(self, tree: PyTree) -> list[Matrix | None]:
        specified: AbstractLabels = self.weight_dimension_numbers
        return matrices_of("ScaleByDion(weight_dimension_numbers=...)", specified, tree)

    def _initial(self, p: Array, matrix: Matrix, k: Array) -> Array:
        plain = jax.ShapeDtypeStruct(p.shape, p.dtype)  # of any sharding
        *batch, _, length = jax.eval_shape(lambda x: self._turned(matrix, x), plain).shape
        return jax.random.normal(k, (*batch, length, self._rank(matrix)), at_least_float32(p.dtype))

    def _rank(self, matrix: Matrix) -> int:
        most, unit = min(matrix.size), self.rank_multiple_of
        rank = self.rank or unit * math.ceil(self.rank_fraction * most / unit)
        return min(rank, most)

    def _is_turned(self, matrix: Matrix) -> bool:
        """Whether the basis belongs to the inputs, which are rows."""
        inputs, outputs = matrix.size
        return self.basis == "inputs" or inputs <= outputs

    def _turned(self, matrix: Matrix, x: Array) -> Array:
        """The matrices, with the side of the basis as columns."""
        return jnp.swapaxes(matrix.of(x), -2, -1) if self._is_turned(matrix) else matrix.of(x)

    def _turned_back(self, matrix: Matrix, x: Array) -> Array:
        return matrix.back(jnp.swapaxes(x, -2, -1) if self._is_turned(matrix) else x)

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
