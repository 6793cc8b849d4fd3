"""The direction of Apollo: the gradient, scaled by factors that Adam would have in a low-rank projection."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, OptionalNumber, choice, number
from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    bias,
    is_due,
    moment,
    real_dtype,
    safe_increment,
    safe_sqrt,
    scalar_like,
    second_moment_like,
)
from .._support.checks import AT_LEAST_ONE, DECAY, NON_NEGATIVE, WHOLE
from .._support.keys import key, next_keys
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from .._support.varying import cond
from ..tree._leafmap import map_with
from .galore import GaLoreDimensionNumbers
from .low_rank import Side, directions, wide
from .matrices import matrices_as
from .matrix_rule import AbstractMatrixRule, by_field, by_leaf

METHODS = ("random", "svd", "range")
SCALES = ("channel", "tensor")
_LEAST = 1e-8  # added to norms that are divided by


class ApolloState(AbstractState):
    """State of `ScaleByApollo`: moments, projectors, norms of the last updates, key of the next projectors, step count.

    The moments of a matrix are those of its projection. `projector` and `norm` are None for leaves that aren't
    matrices.
    """

    mu: PyTree = like_params()
    nu: PyTree = like_params(nonnegative=True)
    projector: PyTree = like_params(exact=True)
    norm: PyTree = like_params(exact=True)
    key: Array = shared()
    count: Count = shared()


class _Leaf(NamedTuple):
    """The state of one leaf."""

    mu: Array
    nu: Array
    projector: Array | None
    norm: Array | None


class ScaleByApollo(AbstractMatrixRule):
    r"""Scales the gradient of every matrix as Adam scales its low-rank projection: the direction of Apollo.

    $$
    \begin{aligned}
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad s_j = \|d_{t, j}\| / (\|R_{t, j}\| + 10^{-8}) \\
    \hat u_{t, ij} &= s_j\, g_{t, ij}, \qquad
        \bar u_t = \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    u_t &= \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns $j$; if there are more rows, the columns are projected, and each
    row has a factor. With `scale_type="tensor"`, the norms are those of whole matrices, and there is one factor. The
    bound of the growth does not apply to the first update, nor to one after an update of zero.

    The entries of $P$ are normal with a variance of $1 / r$, and drawn again every `update_proj_gap` steps; the moments
    stay. Leaves that aren't matrices have the direction of Adam, with $\varepsilon$ added before the bias correction.

    Args:
        rank: rank $r$ of the projection, at most the length of the smaller side.
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        scale_type: `"channel"` for a factor of each channel, or `"tensor"` for one of each matrix.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    rank: int = eqx.field(static=True, default=256, metadata={"least": 1})
    update_proj_gap: Number = number(200, needs=WHOLE)
    scale: Number = number(1.0, needs=NON_NEGATIVE)
    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-6)
    _: dataclasses.KW_ONLY
    scale_type: str = choice(SCALES, "channel")
    method: str = choice(METHODS, "random")
    max_growth: OptionalNumber = number(1.01, needs=AT_LEAST_ONE, optional=True)
    scale_front: bool = eqx.field(static=True, default=False)
    correct_bias: bool = eqx.field(static=True, default=True)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(GaLoreDimensionNumbers))
    key: Any = key()

    def init(self, params: Params) -> ApolloState:
        """Return zeros; the first step computes the projectors."""
        leaves, treedef = jtu.tree_flatten(params)
        sides = self._sides(params)
        found = [self._initial(p, sides.get(i)) for i, p in enumerate(leaves)]
        trees = by_field(found, [treedef.unflatten] * len(_Leaf._fields))
        return ApolloState(*trees, key=jnp.array(self.key, copy=True), count=jnp.zeros((), jnp.int32))

    def _direction(self, updates: Updates, state: ApolloState) -> tuple[Updates, ApolloState]:
        now = self.at(state)
        leaves, treedef = jtu.tree_flatten(updates)
        sides = self._sides(updates)
        before, rebuild = by_leaf(_Leaf, state, updates, "ScaleByApollo.update")
        projectors: list[Any] = [before[i].projector for i in sides]
        for (i, side), projector in zip(sides.items(), projectors, strict=True):
            side.check("ScaleByApollo.update", leaves[i], projector, self.rank)

        def fresh() -> tuple[Array, list[Array]]:
            return self._projectors(state.key, list(sides.values()), [leaves[i] for i in sides], projectors)

        # `cond` rather than `where`: most steps compute no projectors.
        is_time = is_due(state.count, now.update_proj_gap)
        new_key, projectors = cond(is_time, fresh, lambda: (state.key, projectors))
        for i, projector in zip(sides, projectors, strict=True):
            before[i] = before[i]._replace(projector=projector)
        step = functools.partial(_step, now, state.count.astype(float) + 1)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            moved = map_with(step, list(map(sides.get, range(len(leaves)))), list(zip(leaves, before, strict=True)))
        trees = by_field([leaf for _, leaf in moved], rebuild)
        return treedef.unflatten([u for u, _ in moved]), ApolloState(
            *trees, key=new_key, count=safe_increment(state.count)
        )

    def _sides(self, tree: PyTree) -> dict[int, Side]:
        """The leaves that are matrices, by their places in JAX's order; of a square one, the rows are projected."""
        matrices = self._matrices(tree, hidden=True)
        return {i: Side(m, m.size[0] <= m.size[1]) for i, m in enumerate(matrices) if m is not None}

    def _initial(self, p: Array, side: Side | None) -> _Leaf:
        if side is None:
            return _Leaf(jnp.zeros_like(p), second_moment_like(p), None, None)
        mu = jnp.zeros(side.low_shape(self.rank), p.dtype)
        nu = second_moment_like(mu)
        return _Leaf(mu, nu, jnp.zeros(side.shape(self.rank), p.dtype), jnp.zeros(mu.shape[:-2], nu.dtype))

    def _projectors(
        self, raw: Array, sides: list[Side], leaves: list[Array], old: list[Array]
    ) -> tuple[Array, list[Array]]:
        """The key for the next ones, and new projectors in the dtypes of the old ones."""
        if self.method == "random":
            new_key, found = standard_normal(raw, old)
            found = [x / x.shape[-1] ** 0.5 for x in found]
        else:
            new_key, found = raw, directions(sides, leaves, self.rank, self.method)
        return new_key, [x.astype(y.dtype) for x, y in zip(found, old, strict=True)]


def standard_normal(raw: Array, like: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Return the next key data, and standard normal numbers in the shapes of arrays, in at least float32."""
    kept, keys = next_keys(raw, len(like))
    dtypes = [at_least_float32(real_dtype(x.dtype)) for x in like]
    return kept, [jax.random.normal(k, x.shape, d) for k, x, d in zip(keys, like, dtypes, strict=True)]


def _step(now: ScaleByApollo, t: Array, side: Side | None, g: Array, s: _Leaf) -> tuple[Array, _Leaf]:
    """The update of one leaf, and its new state."""
    x = wide(g)
    b1, b2, eps, t = (scalar_like(y, x) for y in (now.b1, now.b2, now.eps, t))
    low = x if side is None else side._replace(projector=s.projector).down(x)
    mu, nu = moment(b1, s.mu.astype(low.dtype), low), moment(b2, s.nu, abs_sq(low))
    u, norm = mu / (eps + safe_sqrt(nu)), s.norm
    if side is not None and norm is not None:
        u, new_norm = _scaled(now, side, x, low, u, norm)
        norm = new_norm.astype(norm.dtype)
    u = safe_sqrt(bias(b2, t)) / bias(b1, t) * u if now.correct_bias else u
    return u.astype(g.dtype), _Leaf(mu.astype(s.mu.dtype), nu.astype(s.nu.dtype), s.projector, norm)


def _scaled(now: ScaleByApollo, side: Side, g: Array, low: Array, d: Array, last: Array) -> tuple[Array, Array]:
    """The scaled gradient of a matrix, and its norm before the last factor, given what Adam does in the projection."""
    axes: Any = (-2, -1) if now.scale_type == "tensor" else -2 if side.is_rows else -1
    factors = _norm(d, axes) / (_LEAST + _norm(low, axes))
    root = safe_sqrt(scalar_like(now.scale, g))
    u = factors.astype(g.dtype) * side.matrix.of(g)
    u = root * u if now.scale_front else u
    norm = _norm(u, (-2, -1))
    if now.max_growth is not None:
        growth = scalar_like(now.max_growth, g)
        last = last.astype(norm.dtype)[..., None, None]
        most = jnp.where(last > 0, growth * (_LEAST + last), norm)
        shrinkage = jnp.minimum(1, most / jnp.where(norm > 0, norm, 1))
        u, norm = shrinkage.astype(u.dtype) * u, shrinkage * norm
    u = u if now.scale_front else root * u
    return side.matrix.back(u), norm[..., 0, 0]


def _norm(x: Array, axes: Any) -> Array:
    return safe_sqrt(jnp.sum(abs_sq(x), axis=axes, keepdims=True))
