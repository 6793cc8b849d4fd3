"""GaLore: runs a transform on low-rank projections of matrices, so that its state is small.

Every `update_proj_gap` steps, `AbstractLowRank` computes new projectors from the current updates. The inner transform
then receives trees in which every matrix is replaced by its projection (`_Side.down`): updates, and parameters if
given. Its result is mapped back to the original shapes (`_Side.up`). Leaves that aren't matrices take no part in this
and reach the inner transform unchanged.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._protocol.extra_arguments import extra_inside
from .._protocol.masks import select
from .._protocol.schedule_values import resolve
from .._support.arithmetic import is_due, no_steps
from .._support.placement import typed_like, undivided
from .._transforms.blocks import Layout
from .._transforms.decayed_step import DecayedStep
from .._transforms.matrices import Axes, make_axes_hashable, matrices_as
from ..linalg import leading_directions
from ..linalg._products import adjoint
from ..linalg._range import leading_range
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


S = TypeVar("S", bound=Any)  # a state with projectors


class AbstractLowRank(ma.AbstractMatrixwise[S]):
    """A rule with a projector of each matrix, whose columns are orthonormal: what GaLore and Apollo share.

    Attributes:
        rank: the largest number of columns.
        update_proj_gap: the number of steps between two computations of the projectors.
        method: `"svd"` or `"range"`.
    """

    improved: ClassVar = ("projector",)
    is_for_hidden_layers: ClassVar = True

    rank: eqx.AbstractVar[int]
    update_proj_gap: eqx.AbstractVar[Any]
    method: eqx.AbstractVar[Any]

    def projects_rows(self, shape: tuple[int, ...]) -> bool:
        """Return whether the rows of matrices of some shape are projected: if there are few, or if it is square."""
        return shape[-2] <= shape[-1]

    def projector_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the projectors of matrices of some shape."""
        *batch, rows, columns = shape
        return (*batch, rows if self.projects_rows(shape) else columns, min(self.rank, rows, columns))

    def down(self, x: ma.Array, projector: ma.Array) -> ma.Array:
        """Return the projections of matrices."""
        projector = projector.astype(x.dtype)
        return adjoint(projector) @ x if self.projects_rows(x.shape) else x @ projector

    def up(self, x: ma.Array, projector: ma.Array, shape: tuple[int, ...]) -> ma.Array:
        """Return the matrices of some shape with these projections."""
        projector = projector.astype(x.dtype)
        return projector @ x if self.projects_rows(shape) else x @ adjoint(projector)

    def is_time(self, now, count):
        """Return whether this step computes the projectors."""
        del now
        return is_due(count, self.update_proj_gap)

    def improve_matrix(self, now, g, s):
        """Return the state with projectors that span the main part of the updates."""
        del now
        find = leading_range if self.method == "range" else leading_directions
        return dataclasses.replace(s, projector=find(g, s.projector.shape[-1], not self.projects_rows(g.shape)))


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


class ScaleByGaLore(AbstractGaLore, ma.AbstractContainer, AbstractLowRank[GaLoreState]):
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

    _gives_gradients = False

    base_optimizer: ma.AbstractTransform = ma.part(None, state="base_optimizer_state", converter=adam_unless_given)

    def init_matrix(self, x):
        # Projectors that `init` computed would need gradients, which the first step has.
        return GaLoreState(no_steps(), ma.EmptyState(), jnp.zeros(self.projector_shape(x.shape), x.dtype))

    def init(self, params: ma.Params) -> GaLoreState:
        """Zero projectors, which the first step replaces, and the inner state for the projected parameters."""
        state = super().init(params)
        small = _projected(params, self._sides(self._layouts(params), jtu.tree_leaves(state.projector)))
        return dataclasses.replace(state, base_optimizer_state=self.base_optimizer.init(small))

    def projects_rows(self, shape):
        return super().projects_rows(shape) if self.follow == "paper" else shape[-2] >= shape[-1]

    def update_matrix(self, now, g, s, p):
        del now, p
        return g, s

    def update(
        self, updates: ma.Updates, state: GaLoreState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, GaLoreState]:
        """One step of the inner transform on the projected updates, mapped back to the original shapes."""
        now = resolve(self, state.count)
        leaves, treedef = jtu.tree_flatten(updates)
        layouts = self._layouts(updates)
        matrices = select(updates, [i in layouts for i in range(len(leaves))])
        projectors, _ = align(state.projector, matrices, "ScaleByGaLore.update")
        for i, side in self._sides(layouts, projectors).items():
            if (found := side.projector.shape) != self.projector_shape((*side.layout.batch, *side.layout.matrix.size)):
                raise ValueError(
                    f"`ScaleByGaLore.update`: an update of shape {leaves[i].shape} doesn't fit its projector of shape "
                    f"{found}. Updates must have the shapes of the parameters that `init` was called with."
                )
        _, new = self._step(updates, dataclasses.replace(state, base_optimizer_state=ma.EmptyState()), None)
        sides = self._sides(layouts, jtu.tree_leaves(new.projector))

        def down(tree: ma.PyTree) -> ma.PyTree:
            return _projected(paired(trainable(tree), updates, "ScaleByGaLore.update"), sides)

        small, base_state = now.base_optimizer.update(
            _projected(updates, sides),
            state.base_optimizer_state,
            None if params is None else _projected(params, sides),
            **extra_inside(extra, updates, down, lambda small: _moved(params, small, sides)),
        )
        out = jtu.tree_leaves(small)
        for i, side in sides.items():
            u = side.up(out[i])
            out[i] = typed_like((jnp.asarray(now.scale).astype(u.dtype) * u).astype(leaves[i].dtype), leaves[i])
        return treedef.unflatten(out), dataclasses.replace(new, base_optimizer_state=base_state)

    def _sides(self, layouts: Mapping[int, Layout], projectors: Sequence[ma.Array]) -> "dict[int, _Side]":
        """The leaves that are matrices, by their places in JAX's order."""
        rows = zip(layouts.items(), projectors, strict=True)
        return {i: _Side(self, layout, projector) for (i, layout), projector in rows}


class _Side(NamedTuple):
    """How an array is matrices, and their projectors."""

    rule: ScaleByGaLore
    layout: Layout
    projector: ma.Array

    def down(self, x: ma.Array) -> ma.Array:
        """Projects an array of the original shape, in at least float32."""
        matrix = self.layout.matrix
        # On explicit axes of a mesh, an axis that others are joined with may not be divided.
        joined = [axis for axes in (matrix.rows, matrix.columns) if len(axes) > 1 for axis in axes]
        return self.rule.down(self.layout.of(undivided(_wide(x, self.projector), joined)), self.projector)

    def up(self, x: ma.Array) -> ma.Array:
        """Maps a projected matrix back to the original shape of its array, in at least float32."""
        size = self.layout.matrix.size
        return self.layout.back(self.rule.up(_wide(x, self.projector), self.projector, size))

    def moved(self, x: ma.Array, start: ma.Array) -> ma.Array:
        """The array, moved from where it is along the directions that the projection keeps."""
        x = _wide(x, start)  # inside a survey, x is in JAX's default float dtype
        step = x - self.down(start).astype(start.dtype).astype(x.dtype)
        return (start.astype(x.dtype) + typed_like(self.up(step), start)).astype(start.dtype)


def _wide(x: ma.Array, other: ma.Array) -> ma.Array:
    return x.astype(ma.at_least_float32(x.dtype, other.dtype))


def _projected(tree: ma.PyTree, sides: Mapping[int, _Side]) -> ma.PyTree:
    """The tree with every matrix projected, in the dtype that it has, and all other leaves unchanged."""
    leaves, treedef = jtu.tree_flatten(tree)
    for i, side in sides.items():
        leaves[i] = side.down(leaves[i]).astype(leaves[i].dtype)
    return treedef.unflatten(leaves)


def _moved(params: ma.Params | None, small: ma.PyTree, sides: Mapping[int, _Side]) -> ma.PyTree:
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
