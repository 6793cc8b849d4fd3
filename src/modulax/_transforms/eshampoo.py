"""The direction of eigenvalue-corrected Shampoo: SOAP in the form of Distributed Shampoo."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.schedule_values import resolve
from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    in_dtype,
    is_due,
    safe_increment,
    safe_sqrt,
    scalar_like,
    zeros_in,
)
from .._support.checks import DECAY, FRACTION, WHOLE
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from .._support.varying import cond
from ..tree._leafmap import map_leaves, map_with
from .blocks import Layout, leaf_by_leaf, padding, turned
from .matrices import Matrix, matrices_as
from .matrix_rule import AbstractMatrixRule
from .muon import MuonDimensionNumbers
from .outer_products import (
    LeafInBases,
    MomentsInBases,
    Side,
    accumulated,
    by_field,
    by_leaf,
    dtype_of_products,
    eigenbasis,
    identities,
    in_batches,
    largest_entry,
    qr_iterations,
    rotated,
    rotated_back,
    sides_in,
    widely,
)
from .shampoo import averages_or_sums, bias_of, first_due, momentum, with_gradients
from .spread import decomposed


class EShampooState(AbstractState):
    """State of `ScaleByEShampoo`: momentum, second moment in the eigenbases, outer products, and their eigenbases.

    The matrices are those of blocks, as in `ShampooState`, and None for leaves that aren't matrices.
    """

    mu: PyTree = like_params(exact=True, moment=1.0)
    nu: PyTree = like_params(nonnegative=True, form=averages_or_sums)
    left: PyTree = like_params(exact=True, form=averages_or_sums)
    right: PyTree = like_params(exact=True, form=averages_or_sums)
    left_basis: PyTree = like_params(preconditioner=True)
    right_basis: PyTree = like_params(preconditioner=True)
    count: Count = shared()


class ScaleByEShampoo(AbstractMatrixRule):
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

    `ScaleBySOAP` uses the bases of the step before, in which it keeps the momentum.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products and of the second moment; 1 for their sums.
        b3: exponential decay rate of the average of momentum and gradient that is projected; by default $\beta_1$, for
            the momentum itself.
        eps: $\varepsilon$, added to the root of the corrected second moment, which is at least $10^{-6}$ times its
            largest entry for a matrix in float32.
        precondition_frequency: number $k$ of steps between two computations of the bases.
        start: the first step with bases; by default $k$.
        block_size: the longest side of a block.
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

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=FRACTION)
    b3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Number = number(1e-12)
    precondition_frequency: Number = number(100, needs=WHOLE)
    start: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    block_size: int = eqx.field(static=True, default=8192, metadata={"least": 1})
    _: dataclasses.KW_ONLY
    qr_iterations: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> EShampooState:
        """Return zeros, and identities as bases."""
        leaves, treedef = jtu.tree_flatten(params)
        found = [self._initial(p, m) for p, m in zip(leaves, self._matrices(params), strict=True)]
        trees = by_field(found, [treedef.unflatten] * len(LeafInBases._fields))
        return EShampooState(*trees, count=jnp.zeros((), jnp.int32))

    def _direction(self, updates: Updates, state: EShampooState) -> tuple[Updates, EShampooState]:
        leaves, treedef = jtu.tree_flatten(updates)
        matrices = self._matrices(updates)
        before, rebuild = by_leaf(LeafInBases, state, updates, "ScaleByEShampoo.update")
        count = safe_increment(state.count)
        rule = _Rule(resolve(self, state.count), count.astype(float))
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            after = with_gradients(rule.now, matrices, leaves, before, [(None, None)] * len(leaves))
            after = rule.with_bases(matrices, after, count)
            given = [
                MomentsInBases(old.mu, s.nu, s.left_basis, s.right_basis) for old, s in zip(before, after, strict=True)
            ]
            found = leaf_by_leaf(rule.directions, matrices, leaves, given)
            after = [s._replace(nu=nu) for s, (_, nu) in zip(after, found, strict=True)]
        new = EShampooState(*by_field(after, rebuild), count=count)
        return treedef.unflatten([u for u, _ in found]), new

    def _initial(self, p: Array, matrix: Matrix | None) -> LeafInBases:
        zeros = zeros_in(p, at_least_float32(p.dtype))
        products: list[Array | None] = [None, None]
        bases: list[Array | None] = [None, None]
        if matrix is not None:
            plain = jax.ShapeDtypeStruct(p.shape, p.dtype)  # of any sharding
            shape = jax.eval_shape(Layout(matrix, self.block_size).of, plain).shape
            dtype = dtype_of_products(p, self.preconditioner_dtype)
            products = [jnp.zeros((*shape[:-2], n, n), dtype) for n in shape[-2:]]
            bases = [identities(x) for x in products if x is not None]
        return LeafInBases(zeros, abs_sq(zeros), *products, *bases)


class _Rule(NamedTuple):
    """The step of one leaf.

    Args:
        now: the transform, with numbers in the place of schedules.
        t: the number of this step, from one on.
    """

    now: ScaleByEShampoo
    t: Array

    def with_bases(self, matrices: list[Matrix | None], leaves: list[LeafInBases], count: Array) -> list[LeafInBases]:
        """The leaves with new bases, if these are due."""
        places = sides_in(leaves)
        if not places:
            return leaves
        bases = [getattr(leaves[i], f"{side}_basis") for i, side in places]

        def fresh() -> list[Array]:
            products = [self._apart(matrices[i], side, getattr(leaves[i], side)) for i, side in places]
            return [basis for (basis,) in in_batches(decomposed(widely(self._basis)), products, bases)]

        new = list(leaves)
        for (i, side), basis in zip(places, cond(self._is_due(count), fresh, lambda: bases), strict=True):
            new[i] = new[i]._replace(**{f"{side}_basis": basis})
        return new

    def _is_due(self, count: Array) -> Array:
        start = first_due(self.now)
        return (count == start) | ((count > start) & is_due(count, self.now.precondition_frequency))

    def _apart(self, matrix: Matrix | None, side: Side, x: Array) -> Array:
        """The outer products, with the eigenvalues of what fills up a block above all others."""
        assert matrix is not None
        is_filled = padding(matrix.size, self.now.block_size, side)
        if not np.any(is_filled):
            return x
        most = jnp.trace(x, axis1=-2, axis2=-1)[..., None, None] * 2
        return x + most * is_filled[..., None] * identities(x)

    def _basis(self, x: Array, basis: Array) -> tuple[Array]:
        if self.now.qr_iterations is None:
            return (jnp.flip(eigenbasis(x), axis=-1),)
        b2, eps, t = (scalar_like(y, x) for y in (self.now.b2, self.now.eps, self.t))
        return (qr_iterations(x / bias_of(b2, t) + eps * identities(x), basis, self.now.qr_iterations),)

    def directions(
        self, matrices: list[Matrix | None], leaves: list[Array], given: list[MomentsInBases]
    ) -> list[tuple[Array, Array]]:
        """The direction of each leaf, and its new second moment."""
        layouts = [Layout(matrix, self.now.block_size) for matrix in matrices]
        pairs = map_leaves(self._filtered, None, [(g, s.mu) for g, s in zip(leaves, given, strict=True)])
        pairs = turned(rotated, layouts, pairs, given)
        found = map_with(self._scaled, matrices, [(*xs, s.nu) for xs, s in zip(pairs, given, strict=True)])
        out = turned(rotated_back, layouts, [(u,) for u, _ in found], given)
        return [(in_dtype(u, g.dtype), nu) for (u,), (_, nu), g in zip(out, found, leaves, strict=True)]

    def _filtered(self, _: None, g: Array, mu: Array) -> tuple[Array, Array]:
        """The gradient and the momentum to project."""
        return in_dtype(g, at_least_float32(g.dtype)), momentum(self.now, self.t, g, mu)

    def _scaled(self, matrix: Matrix | None, x: Array, mu: Array, nu: Array) -> tuple[Array, Array]:
        """The direction in the bases, and the new second moment."""
        b2, eps, t = (scalar_like(y, x) for y in (self.now.b2, self.now.eps, self.t))
        new = accumulated(b2, nu, abs_sq(x))
        return mu / (_above_rounding(matrix, safe_sqrt(new / bias_of(b2, t))) + eps), in_dtype(new, nu.dtype)


def _above_rounding(matrix: Matrix | None, root: Array) -> Array:
    """The root of a second moment, at least the rounding errors of a projection.

    Where a projected gradient is zero but for them, that of the momentum is another such error: their quotient is any
    number. Errors of the same gradient are at most one in SOAP, whose momentum is an average of projected gradients.
    """
    if matrix is None:
        return root
    root = matrix.of(root)
    return matrix.back(jnp.maximum(root, 8 * jnp.finfo(root.dtype).eps * largest_entry(root)))
