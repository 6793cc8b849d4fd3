"""GaLore: runs a transform on low-rank projections of matrices, so that its state is small.

Every `update_proj_gap` steps, the rule `_Projectors` computes new projectors from the current updates. The inner
transform then receives trees in which every matrix is replaced by its projection (`Side.down`): updates, and parameters
if given. Its result is mapped back to the original shapes (`Side.up`). Leaves that aren't matrices take no part in this
and reach the inner transform unchanged.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.container import extra_inside
from .._protocol.masks import select
from .._protocol.schedule_values import resolve
from .._support.arithmetic import is_due
from .._support.module import from_same_fields
from .._transforms.decayed_step import DecayedStep
from .._transforms.low_rank import Side, directions
from .._transforms.matrices import Axes, make_axes_hashable, matrices_as, matrices_of, specified_matrices
from ..tree._align import align, paired
from ..tree._math import trainable
from .adam import ScaleByAdam


@dataclasses.dataclass(frozen=True)
class GaLoreDimensionNumbers:
    """Which axes of an array are the rows of a matrix, and which are its columns. All other axes are batch axes.

    For an attention projection with axes for embedding, heads and head size, use `GaLoreDimensionNumbers(0, (1, 2))`.

    Args:
        reduction_axis: axis or axes of the rows.
        output_axis: axis or axes of the columns.
    """

    reduction_axis: Axes = 0
    output_axis: Axes = 1

    __post_init__ = make_axes_hashable


class GaLoreState(ma.AbstractState):
    """State of `ScaleByGaLore`: step count, state of the inner transform, and the projector of every matrix."""

    optax_fields = ("count", "base_optimizer_state", "projector")

    count: ma.Count = ma.shared()
    base_optimizer_state: ma.PyTree = ma.nested()
    projector: ma.PyTree = ma.like_params(exact=True, per_matrix=True)


def adam_unless_given(x: Any) -> Any:
    """The inner transform, by default `ScaleByAdam()`."""
    return ScaleByAdam() if x is None else x


class _ProjectorState(ma.AbstractState):
    """The projectors and the step count."""

    projector: ma.PyTree = ma.like_params(per_matrix=True)
    count: ma.Shared[ma.Count] = ma.counter()


class _Projectors(ma.AbstractMatrixwise[_ProjectorState]):
    """The projectors of GaLore, as a rule that leaves the updates as they are."""

    improved: ClassVar = ("projector",)
    is_for_hidden_layers: ClassVar = True

    rank: int = eqx.field(static=True)
    weight_dimension_numbers: Any = eqx.field(static=True)
    method: str = eqx.field(static=True)
    update_proj_gap: ma.Number = ma.number(200)
    follow: ma.Follow = ma.followed()

    def init_matrix(self, x):
        *batch, rows, columns = x.shape
        side = rows if has_few_rows(rows, columns, self.follow) else columns
        # _Projectors that `init` computed would need gradients, which the first step has.
        return _ProjectorState(jnp.zeros((*batch, side, min(self.rank, rows, columns)), x.dtype))

    def is_time(self, now, count):
        del now
        return is_due(count, self.update_proj_gap)

    def improve_matrix(self, now, g, s):
        del now
        is_rows = has_few_rows(g.shape[-2], g.shape[-1], self.follow)
        return _ProjectorState(directions(g, s.projector.shape[-1], is_rows, self.method))

    def update_matrix(self, now, g, s, p):
        del now, p
        return g, s


def has_few_rows(rows: int, columns: int, follow: ma.Follow) -> bool:
    """Whether the rows of a matrix are projected; those of a square one are."""
    return rows <= columns if follow == "paper" else rows >= columns


class AbstractGaLoreProjection(ma.AbstractFields):
    r"""The hyperparameters of the projection in GaLore.

    Args:
        rank: rank $r$ of the projection. A matrix with a smaller side keeps its size, and is only rotated.
        update_proj_gap: number $T$ of steps between two computations of the projectors.
        scale: factor $\alpha$ of the updates of matrices; the paper uses 0.25.
        base_optimizer: the inner transform, which is run on the projected gradients, without learning rate; by default
            `ScaleByAdam()`.
    """

    rank: int = ma.static(128, least=1)
    update_proj_gap: ma.Number = ma.number(200, needs=ma.WHOLE)
    scale: ma.Number = ma.number(1.0)
    base_optimizer: ma.AbstractTransform = ma.part(None, converter=adam_unless_given)


class AbstractGaLore(AbstractGaLoreProjection):
    r"""The hyperparameters of GaLore.

    Args:
        weight_dimension_numbers: which parameters are matrices: a `GaLoreDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell, as in `Muon`.
        follow: which side is projected: the smaller one, `"paper"`, or the larger one, `"optax"`.
        method: `"svd"` for singular vectors, or `"range"` for other orthonormal columns that nearly span them, found by
            matrix products alone. On a TPU, the program of one decomposition takes more than a minute to compile. A
            small transformer trained worse with `"range"`: a loss of 1.90 in place of 1.86 after 600 steps at rank 32.
    """

    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(GaLoreDimensionNumbers))
    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()
    method: Literal["svd", "range"] = ma.choice(("svd", "range"), "svd")


class ScaleByGaLore(AbstractGaLore, ma.AbstractContainer):
    r"""Runs a transform on low-rank projections of all matrices (GaLore), which reduces the memory of its state.

    $$
    \begin{aligned}
    P_t &= \begin{cases} U_{:,1:r} \text{ of } g_t = U \Sigma V^\top & t \equiv 0 \pmod T \\ P_{t-1} &
        \text{otherwise} \end{cases} \\
    u_t &= \alpha\, P_t\, \rho(P_t^\top g_t)
    \end{aligned}
    $$

    $\rho$ is the inner transform, whose moments have $r \times n$ entries instead of $m \times n$. These equations are
    for a matrix with at most as many rows as columns, $m \le n$. If there are more rows, the columns are projected:
    $u_t = \alpha\, \rho(g_t Q_t) Q_t^\top$ with $Q_t = V_{:,1:r}$. So the smaller side is always the one that shrinks,
    as in the paper. optax projects the larger side, and so does `follow="optax"`.

    The inner transform receives the parameters projected in the same way. Leaves that aren't matrices are passed to it
    unchanged, and their updates are not multiplied by $\alpha$.

    The signs of singular vectors are those that the decomposition on the device returns. The moments stay when the
    projector changes, as in the authors' code, so from then on a training on a GPU differs from one on a CPU.

    Args:
        rank: rank $r$ of the projection. A matrix with a smaller side keeps its size, and is only rotated.
        update_proj_gap: number $T$ of steps between two computations of the projectors.
        scale: factor $\alpha$ of the updates of matrices; the paper uses 0.25.
        base_optimizer: the inner transform, which is run on the projected gradients, without learning rate; by default
            `ScaleByAdam()`.
        weight_dimension_numbers: which parameters are matrices: a `GaLoreDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell, as in `Muon`.
        follow: which side is projected: the smaller one, `"paper"`, or the larger one, `"optax"`.
        method: `"svd"` for singular vectors, or `"range"` for other orthonormal columns that nearly span them, found by
            matrix products alone. On a TPU, the program of one decomposition takes more than a minute to compile. A
            small transformer trained worse with `"range"`: a loss of 1.90 in place of 1.86 after 600 steps at rank 32.

    References:
        Zhao et al., [GaLore: Memory-Efficient LLM Training by Gradient Low-Rank
        Projection](https://arxiv.org/abs/2403.03507), 2024.
    """

    clock = "steps"
    _gives_gradients = False

    base_optimizer: ma.AbstractTransform = ma.part(None, state="base_optimizer_state", converter=adam_unless_given)

    def init(self, params: ma.Params) -> GaLoreState:
        """Zero projectors, which the first step replaces, and the inner state for the projected parameters."""
        state = from_same_fields(_Projectors, self).init(params)
        projectors = zip(self._sides(params).items(), jtu.tree_leaves(state.projector), strict=True)
        sides = {i: side._replace(projector=projector) for (i, side), projector in projectors}
        return GaLoreState(state.count, self.base_optimizer.init(_projected(params, sides)), state.projector)

    def update(
        self, updates: ma.Updates, state: GaLoreState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, GaLoreState]:
        """One step of the inner transform on the projected updates, mapped back to the original shapes."""
        now = resolve(self, state.count)
        leaves, treedef = jtu.tree_flatten(updates)
        sides = self._sides(updates)
        matrices = select(updates, [i in sides for i in range(len(leaves))])
        projectors, _ = align(state.projector, matrices, "ScaleByGaLore.update")
        for (i, side), projector in zip(sides.items(), projectors, strict=True):
            side.check("ScaleByGaLore.update", leaves[i], projector, self.rank)

        _, new_state = from_same_fields(_Projectors, now).update(
            updates, _ProjectorState(state.projector, count=state.count)
        )
        new_projectors = jtu.tree_leaves(new_state.projector)
        new_sides = {i: sides[i]._replace(projector=p) for i, p in zip(sides, new_projectors, strict=True)}

        def down(tree: ma.PyTree) -> ma.PyTree:
            return _projected(paired(trainable(tree), updates, "ScaleByGaLore.update"), new_sides)

        def up(small: ma.PyTree) -> ma.PyTree:
            return _moved(params, small, new_sides)

        new, base_state = now.base_optimizer.update(
            _projected(updates, new_sides),
            state.base_optimizer_state,
            None if params is None else _projected(params, new_sides),
            **extra_inside(extra, updates, down, up),
        )
        out = jtu.tree_leaves(new)
        for i, side in new_sides.items():
            out[i] = now._scaled(side.up(out[i])).astype(leaves[i].dtype)
        return treedef.unflatten(out), GaLoreState(new_state.count, base_state, new_state.projector)

    def _scaled(self, u: ma.Array) -> ma.Array:
        return jnp.asarray(self.scale).astype(u.dtype) * u

    def _sides(self, tree: ma.PyTree) -> "dict[int, Side]":
        """The leaves that are matrices, by their places in JAX's order."""
        specified = specified_matrices(self.weight_dimension_numbers, self.follow)
        matrices = matrices_of("ScaleByGaLore(weight_dimension_numbers=...)", specified, tree)
        return {i: Side(m, has_few_rows(*m.size, self.follow)) for i, m in enumerate(matrices) if m is not None}


def _projected(tree: ma.PyTree, sides: Mapping[int, Side]) -> ma.PyTree:
    """The tree with every matrix projected, in the dtype that it has, and all other leaves unchanged."""
    leaves, treedef = jtu.tree_flatten(tree)
    for i, side in sides.items():
        leaves[i] = side.down(leaves[i]).astype(leaves[i].dtype)
    return treedef.unflatten(leaves)


def _moved(params: ma.Params | None, small: ma.PyTree, sides: Mapping[int, Side]) -> ma.PyTree:
    """The parameters at a point of the projected space: moved along the directions that the projection keeps.

    The caller's functions of the parameters, such as `value_fn`, are evaluated there. The inner transform cannot move
    the parameters in any other direction, so the components that the projection drops keep their values.
    """
    leaves, treedef = jtu.tree_flatten(small)
    starts = jtu.tree_leaves(params)
    for i, side in sides.items():
        leaves[i] = side.up(leaves[i]) if params is None else side.moved(leaves[i], starts[i])
    return treedef.unflatten(leaves)


class GaLore(AbstractGaLore, ma.AbstractDecayed, AbstractGaLoreProjection, ma.AbstractRated):
    r"""Memory-efficient Adam for large models: keeps the moments of a low-rank projection of each gradient matrix.

        optimizer = GaLore(1e-3, rank=128, scale=0.25)

    $$
    \begin{aligned}
    P_t &= \begin{cases} U_{:,1:r} \text{ of } g_t = U \Sigma V^\top & t \equiv 0 \pmod T \\ P_{t-1} &
        \text{otherwise} \end{cases} \\
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad \hat m_t = m_t / (1 - \beta_1^{t+1}) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^{t+1}) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t - \eta \alpha\, P_t\, \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon}
        \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $t = 0, 1, \dots$, for a matrix with at most as many rows as columns. If there
    are more rows, the columns are projected in the same way. Parameters that aren't matrices are trained by Adam
    without projection, and without $\alpha$. The lines of $m_t$ and $v_t$ are the default `base_optimizer`; another one
    replaces them. The weights decay after the step, as in the authors' code; with `follow="optax"`, before it, as in
    AdamW.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        rank: rank $r$ of the projection. A matrix with a smaller side keeps its size, and is only rotated.
        update_proj_gap: number $T$ of steps between two computations of the projectors.
        scale: factor $\alpha$ of the updates of matrices; the paper uses 0.25.
        base_optimizer: the inner transform, which is run on the projected gradients, without learning rate; by default
            `ScaleByAdam()`.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices: a `GaLoreDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell, as in `Muon`.
        follow: which side is projected: the smaller one, `"paper"`, or the larger one, `"optax"`.
        method: `"svd"` for singular vectors, or `"range"` for other orthonormal columns that nearly span them, found by
            matrix products alone. On a TPU, the program of one decomposition takes more than a minute to compile. A
            small transformer trained worse with `"range"`: a loss of 1.90 in place of 1.86 after 600 steps at rank 32.

    References:
        Zhao et al., [GaLore: Memory-Efficient LLM Training by Gradient Low-Rank
        Projection](https://arxiv.org/abs/2403.03507), 2024.
    """

    direction = ScaleByGaLore

    def transform(self) -> ma.AbstractTransform:
        if self.follow == "optax":
            return super().transform()
        return ma.Chain(*self.directions(), self._part(DecayedStep, after=True))
