"""The direction of SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

import dataclasses
from collections.abc import Sequence
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
    bias,
    in_dtype,
    is_due,
    safe_increment,
    safe_sqrt,
    scalar_like,
    zeros_in,
)
from .._support.checks import DECAY, WHOLE
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from .._support.varying import cond
from ..numerics._norms import safe_root_mean_squares
from ..tree._leafmap import map_leaves
from .blocks import Layout, Leaf, gathered, leaf_by_leaf, on_blocks, turned
from .matrices import Matrix, matrices_as
from .matrix_rule import AbstractMatrixRule
from .muon import MuonDimensionNumbers
from .outer_products import (
    SIDES,
    LeafInBases,
    MomentsInBases,
    average,
    by_field,
    by_leaf,
    dtype_of_products,
    eigenbasis,
    in_batches,
    in_order,
    next_eigenbasis,
    rotated,
    rotated_back,
    sides_in,
    times,
    widely,
)
from .spread import decomposed

_LEAST = 1e-30  # added to the root of the mean square that a direction is divided by


class SOAPState(AbstractState):
    """State of `ScaleBySOAP`: moments in the eigenbases, averages of the outer products, and the eigenbases.

    `left` and `right` are None for leaves that aren't matrices, and for sides longer than `max_precond_dim`.
    """

    mu: PyTree = like_params()
    nu: PyTree = like_params(nonnegative=True)
    left: PyTree = like_params(exact=True)
    right: PyTree = like_params(exact=True)
    left_basis: PyTree = like_params(preconditioner=True)
    right_basis: PyTree = like_params(preconditioner=True)
    count: Count = shared()


class ScaleBySOAP(AbstractMatrixRule):
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
    leaves are trained by Adam, also from the second call on.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        shampoo_beta: exponential decay rate $\beta$ of the outer products; by default $\beta_2$.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        precondition_frequency: number $k$ of steps between two improvements of the bases.
        max_precond_dim: the longest side of a matrix that gets a basis; the other side may still have one.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`; by default the roles of the
            parameters tell which axes are rows and columns, and all arrays with both are matrices, embeddings too.
        normalize_grads: whether each direction is divided by the root of its mean square.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        preconditioner_dtype: dtype in which outer products and bases are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Vyas et al., [SOAP: Improving and Stabilizing Shampoo using Adam](https://arxiv.org/abs/2409.11321), 2024, and
        the authors' [code](https://github.com/nikhilvyas/SOAP).
    """

    b1: Number = number(0.95, needs=DECAY)
    b2: Number = number(0.95, needs=DECAY)
    shampoo_beta: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Number = number(1e-8)
    precondition_frequency: Number = number(10, needs=WHOLE)
    max_precond_dim: int = eqx.field(static=True, default=10_000, metadata={"least": 1})
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    _: dataclasses.KW_ONLY
    normalize_grads: bool = eqx.field(static=True, default=False)
    correct_bias: bool = eqx.field(static=True, default=True)
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> SOAPState:
        """Return zeros; the first call computes the bases."""
        leaves, treedef = jtu.tree_flatten(params)
        found = [self._initial(p, m) for p, m in zip(leaves, self._matrices(params), strict=True)]
        trees = by_field(found, [treedef.unflatten] * len(LeafInBases._fields))
        return SOAPState(*trees, count=jnp.zeros((), jnp.int32))

    def _direction(self, updates: Updates, state: SOAPState) -> tuple[Updates, SOAPState]:
        now, is_first = resolve(self, state.count), state.count == 0
        leaves, treedef = jtu.tree_flatten(updates)
        matrices = self._matrices(updates)
        before, rebuild = by_leaf(LeafInBases, state, updates, "ScaleBySOAP.update")
        rule = _Rule(now, now._bias_correction(state.count), is_first)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            moved = leaf_by_leaf(rule.moved, matrices, leaves, before)
            after = [s._replace(**new) for s, (_, new) in zip(before, moved, strict=True)]
            after = _with_bases(matrices, after, is_first | is_due(state.count, now.precondition_frequency), is_first)
        new = SOAPState(*by_field(after, rebuild), count=safe_increment(state.count))
        return treedef.unflatten([u for u, _ in moved]), new

    def _bias_correction(self, count: Array) -> Array:
        """The factor of the direction that corrects the bias of both moments, which the first call doesn't change."""
        t = jnp.maximum(count.astype(float), 1.0)
        b1, b2 = (scalar_like(y, t) for y in (self.b1, self.b2))
        return safe_sqrt(bias(b2, t)) / bias(b1, t) if self.correct_bias else jnp.ones_like(t)

    def _initial(self, p: Array, matrix: Matrix | None) -> LeafInBases:
        zeros = zeros_in(p, at_least_float32(p.dtype))
        sides: list[Array | None] = [None, None]
        if matrix is not None:
            batch, shape = [p.shape[axis] for axis in matrix.batch], matrix.size
            dtype = dtype_of_products(p, self.preconditioner_dtype)
            sides = [jnp.zeros((*batch, n, n), dtype) if n <= self.max_precond_dim else None for n in shape]
        return LeafInBases(zeros_in(p, None), abs_sq(zeros), *sides, *sides)


class _Rule(NamedTuple):
    """The step before the bases are improved.

    Args:
        now: the transform, with numbers in the place of schedules.
        scale: what corrects the bias of both moments.
        is_first: whether this is the first call.
    """

    now: ScaleBySOAP
    scale: Array
    is_first: Array

    def moved(
        self, matrices: list[Matrix | None], leaves: list[Array], before: list[LeafInBases]
    ) -> list[tuple[Array, dict[str, Array | None]]]:
        """The directions of all leaves, and what is new of their states: moments and outer products."""
        layouts = [Layout(matrix) for matrix in matrices]
        xs = [in_dtype(g, at_least_float32(g.dtype)) for g in leaves]
        found = turned(rotated, layouts, [(x,) for x in xs], before)
        found = map_leaves(self._scaled, None, [(x, s.mu, s.nu) for (x,), s in zip(found, before, strict=True)])
        out = turned(rotated_back, layouts, [(u,) for u, *_ in found], before)
        beta = self.now.b2 if self.now.shampoo_beta is None else self.now.shampoo_beta
        after = gathered(beta, layouts, xs, before)
        us = map_leaves(self._finished, None, [(u, g) for (u,), g in zip(out, leaves, strict=True)])
        rows = zip(us, after, found, strict=True)
        return [(u, {"mu": mu, "nu": nu, "left": s.left, "right": s.right}) for u, s, (_, mu, nu) in rows]

    def _scaled(self, _: None, x: Array, mu: Array, nu: Array) -> tuple[Array, Array, Array]:
        """The direction in the bases, and the new moments."""
        b1, b2, eps, scale = (scalar_like(y, x) for y in (self.now.b1, self.now.b2, self.now.eps, self.scale))
        new_mu, new_nu = average(b1, in_dtype(mu, x.dtype), x), average(b2, nu, abs_sq(x))
        u = jax.lax.div(new_mu, in_dtype(jax.lax.add(safe_sqrt(new_nu), eps), x.dtype))
        kept = [jax.lax.select(self.is_first, y, in_dtype(new, y.dtype)) for y, new in ((mu, new_mu), (nu, new_nu))]
        return times(u, scale), kept[0], kept[1]

    def _finished(self, _: None, u: Array, g: Array) -> Array:
        if self.now.normalize_grads:
            u = u / (_LEAST + safe_root_mean_squares(u, 0.0))
        return jax.lax.select(self.is_first, jax.lax.full_like(g, 0), in_dtype(u, g.dtype))


def _with_bases(
    matrices: list[Matrix | None], leaves: list[LeafInBases], is_wanted: Array, is_first: Array
) -> list[LeafInBases]:
    """The leaves with new bases, if they are due: eigenvectors at first, and then one step of a power iteration."""
    places = sides_in(leaves)
    if not places:
        return leaves
    indices = dict.fromkeys(i for i, _ in places)
    products = [getattr(leaves[i], side) for i, side in places]
    bases = [getattr(leaves[i], f"{side}_basis") for i, side in places]

    # Nothing else, because XLA for GPU copies what a branch returns unchanged.
    def before() -> list[MomentsInBases]:
        return [MomentsInBases(*(getattr(leaves[i], name) for name in MomentsInBases._fields)) for i in indices]

    def basis_of(x: Array, basis: Array) -> tuple[Array, Array]:
        new, order = cond(is_first, lambda: _first_eigenbasis(x, basis), lambda: next_eigenbasis(x, basis))
        return new, jax.lax.expand_dims(order, (order.ndim,))

    def improved() -> Sequence[MomentsInBases]:
        found = in_batches(decomposed(widely(basis_of)), products, bases, is_flat=True)
        new = dict(zip(places, found, strict=True))
        sides = [[new.get((i, side)) for side in SIDES] for i in indices]
        old = [(leaves[i].left_basis, leaves[i].right_basis) for i in indices]
        mu, nu = ([getattr(leaves[i], name) for i in indices] for name in ("mu", "nu"))
        return leaf_by_leaf(_carried, [matrices[i] for i in indices], mu, nu, old, sides)

    out = list(leaves)
    for i, new in zip(indices, cond(is_wanted, improved, before), strict=True):
        out[i] = out[i]._replace(**new._asdict())
    return out


def _first_eigenbasis(x: Array, basis: Array) -> tuple[Array, Array]:
    """The eigenvectors, and the order of vectors that there were not."""
    return eigenbasis(x), jax.lax.broadcasted_iota(np.int32, basis.shape[:-1], basis.ndim - 2)


def _carried(
    matrices: list[Matrix | None],
    mu: list[Array],
    nu: list[Array],
    old: list[Sequence[Array | None]],
    new: list[Sequence[Sequence[Array] | None]],
) -> list[MomentsInBases]:
    """The moments of all leaves in new bases, and these, which come flat, with the order of the old vectors in them."""
    bases, leaves = [], []
    for matrix, x, y, before, found in zip(matrices, mu, nu, old, new, strict=True):
        after, orders = zip(*(_shaped(pair, q) for pair, q in zip(found, before, strict=True)), strict=True)
        bases.append(after)
        leaves.append(Leaf(None, Layout(matrix), (x, y), (*before, *after, *orders)))
    return [MomentsInBases(*moments, *pair) for moments, pair in zip(on_blocks(_moments, leaves), bases, strict=True)]


def _shaped(flat: Sequence[Array] | None, like: Array | None) -> Sequence[Array | None]:
    """A new basis and the order of the old vectors, with the batch axes of the old basis; None for a side without."""
    if flat is None or like is None:
        return None, None
    return [jax.lax.reshape(y, (*like.shape[:-2], *y.shape[-2:])) for y in flat]


def _moments(_: None, mu: Array, nu: Array, *factors: Array | None) -> tuple[Array, Array]:
    """The first moment in new bases, and the entries of the second one in their order."""
    left, right, new_left, new_right, *orders = factors
    x = rotated_back(in_dtype(mu, at_least_float32(mu.dtype)), left, right)
    for side, order in zip(SIDES, orders, strict=True):
        nu = nu if order is None else in_order(nu, jax.lax.squeeze(order, (order.ndim - 1,)), side)
    return in_dtype(rotated(x, new_left, new_right), mu.dtype), nu
