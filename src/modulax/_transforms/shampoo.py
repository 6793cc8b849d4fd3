"""The direction of Shampoo and KL-Shampoo: gradients between inverse roots of the averages of their outer products."""

import collections
import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, DTypeLike, PyTree

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.masks import AbstractLabels
from .._protocol.small_steps import largest
from .._protocol.transform import AbstractTransform, Clock, Effect, EmptyState
from .._support.arithmetic import (
    at_least_float32,
    bias,
    in_dtype,
    is_due,
    moment,
    safe_increment,
    scalar_like,
    zeros_in,
)
from .._support.checks import DECAY, FRACTION, WHOLE
from .._support.module import AbstractState, like_params, nested, shared
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from ..numerics._norms import safe_norm
from ..tree._leafmap import map_leaves
from ..tree._paths import leaf_paths
from .blocks import Layout, Leaf, gathered, leaf_by_leaf, on_blocks
from .matrices import Matrix, matrices_as, matrices_of
from .muon import MuonDimensionNumbers
from .outer_products import (
    applied,
    average,
    by_field,
    by_leaf,
    dtype_of_products,
    in_batches,
    inverse_root,
    sides_in,
    widely,
)
from .spread import decomposed, tree_on_auto_axes

T = TypeVar("T", bound=Any)  # a NamedTuple: what the state has of one leaf

_TOO_SMALL = 1e-6  # for an `eps` that bounds the roots of a factor without full rank
_TINY = 1e-16  # added to the norm that a grafted direction is divided by


def _known(x: Any) -> Any:
    """A number that decides what a state holds, or numbers of several members, in a form that can be compared."""
    return x if x is None else "traced" if isinstance(x, Tracer) else np.asarray(x).tolist()


def averages_or_sums(rule: Any) -> Any:
    """Whether the outer products are averaged or summed: the former with a decay rate below one."""
    return _known(rule.b2 if isinstance(rule.b2, Tracer) else np.asarray(rule.b2) < 1)


def _root_form(rule: Any) -> Any:
    """What the roots are."""
    return _known(rule.exponent)


def _product_form(rule: Any) -> Any:
    """What the factors are: sums or averages, and of which products."""
    return averages_or_sums(rule), rule.kl and _root_form(rule)


class ShampooState(AbstractState):
    """State of `ScaleByShampoo`: momentum, averages or sums of the outer products, and their inverse roots.

    The matrices are those of blocks: the first axes after those of a batch count the blocks of rows and of columns.
    `right` and `right_root` are None for vectors. `has_roots` tells whether roots have been computed; at first they are
    identities. `grafting_state` is the state of the transform whose norms are taken.
    """

    mu: PyTree = like_params(exact=True, moment=1.0)
    left: PyTree = like_params(exact=True, form=_product_form)
    right: PyTree = like_params(exact=True, form=_product_form)
    left_root: PyTree = like_params(preconditioner=True, form=_root_form)
    right_root: PyTree = like_params(preconditioner=True, form=_root_form)
    count: Count = shared()
    has_roots: Bool[Array, ""] = shared()
    grafting_state: State = nested()


class _Leaf(NamedTuple):
    """The state of one leaf."""

    mu: Array
    left: Array
    right: Array | None
    left_root: Array
    right_root: Array | None


class ScaleByShampoo(AbstractContainer):
    r"""Multiplies each matrix by inverse roots of the sums of its outer products: the direction of Shampoo.

    $$
    \begin{aligned}
    L_t &= L_{t-1} + g_t g_t^\top, \qquad R_t = R_{t-1} + g_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    u_t &= (L_t + \varepsilon I)^{-1/4}\, \hat m_t\, (R_t + \varepsilon I)^{-1/4}
    \end{aligned}
    $$

    With $\beta_2 < 1$, $L$ and $R$ are exponential averages, corrected by $1 - \beta_2^t$. The roots are computed every
    $k$ steps, from step `start` on; until then the update is that of the grafting, or $\hat m_t$. A vector has only the
    left factor, with the root $-1/2$. A matrix with a longer side than `block_size` is divided into blocks, each of
    which has its own factors.

    With a `grafting`, each block of an update has the norm of the same block in the update of that transform, which
    receives the same gradients. For Distributed Shampoo's `SGDPreconditionerConfig`, write `Ema(b1)`; for its
    `AdamPreconditionerConfig(beta2, epsilon)`, without `b3`, `ScaleByAdam(b1, beta2, epsilon)`. Its AdaGrad and its
    RMSprop divide the momentum by the root of their second moment, for which there is no class.

    With `kl`, $L$ is the average of $g_t R^{-1/2} g_t^\top$, and $R$ that of $g_t^\top L^{-1/2} g_t$, with the roots
    that were computed last: the fixed point that minimizes a Kullback-Leibler divergence (KL-Shampoo).

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products; 1 for their sum.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        precondition_frequency: number $k$ of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default $k$.
        block_size: the longest side of a block.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`. With None for an array, as in
            `by_path({"*": None})`, it is one vector of all entries, as small matrices are in Distributed Shampoo.
        kl: whether the outer products are those of KL-Shampoo.
        preconditioner_dtype: dtype in which outer products and roots are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Gupta et al., [Shampoo: Preconditioned Stochastic Tensor Optimization](https://arxiv.org/abs/1802.09568), 2018;
        Shi et al., [A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo
        Optimizer](https://arxiv.org/abs/2309.06497), 2023.
    """

    clock: ClassVar[Clock] = "steps"

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(1.0, needs=FRACTION)
    b3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Number = number(1e-12)
    precondition_frequency: Number = number(1, needs=WHOLE)
    start: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    block_size: int = eqx.field(static=True, default=1024, metadata={"least": 1})
    exponent: OptionalNumber = number(None, optional=True)
    grafting: AbstractTransform | None = part(None, optional=True, state="grafting_state", auxiliary=True)
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    _: dataclasses.KW_ONLY
    kl: bool = eqx.field(static=True, default=False)
    preconditioner_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init(self, params: Params) -> ShampooState:
        """Return zeros, and identities as roots."""
        leaves, treedef = jtu.tree_flatten(params)
        found = [self._initial(p, m) for p, m in zip(leaves, self._matrices(params), strict=True)]
        grafting = EmptyState() if self.grafting is None else self.grafting.init(params)
        trees = by_field(found, [treedef.unflatten] * len(_Leaf._fields))
        numbers = {"count": jnp.zeros((), jnp.int32), "has_roots": jnp.zeros((), bool)}
        return ShampooState(*trees, **numbers, grafting_state=grafting)

    def update(
        self, updates: Updates, state: ShampooState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ShampooState]:
        """Return the preconditioned momentum, and the state with the new outer products and roots."""
        grafted, grafting, transform = None, state.grafting_state, self.resolved(state).grafting
        if transform is not None:
            grafted, grafting = transform.update(updates, grafting, params, **extra)
        own = dataclasses.replace(state, grafting_state=EmptyState())
        out, _, new = tree_on_auto_axes(lambda now, tree: now._direction(*tree), self, (updates, grafted, own))
        return out, dataclasses.replace(new, grafting_state=grafting)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        every, eps = largest(self.precondition_frequency), largest(self.eps)
        if self.grafting is not None or every is None or every <= 1 or eps is None or eps > _TOO_SMALL:
            return Effect()
        rows = zip(leaf_paths(tree), jtu.tree_leaves(tree), self._matrices(tree), strict=True)
        lengths = {path: [n for _, n in Layout(m, self.block_size).sides(x.shape)] for path, x, m in rows if x.size}
        needed = {path: math.ceil(max(sides) / min(sides)) for path, sides in lengths.items()}
        if max(needed.values(), default=0) <= (every if self.start is None else self.start):
            return Effect()
        most = max(needed, key=needed.__getitem__)
        return Effect(warnings=[
            f"the first roots are those of fewer gradients than `{most}` needs for a factor of full rank. Until the "
            f"next ones, steps in new directions are hundreds of times too long. Give `grafting=ScaleByAdam()`, or "
            f"`start={needed[most]}`."
        ])  # fmt: skip

    def _direction(
        self, updates: Updates, grafted: Updates | None, state: ShampooState
    ) -> tuple[Updates, Updates | None, ShampooState]:
        now = self.resolved(state)
        leaves, treedef = jtu.tree_flatten(updates)
        matrices = self._matrices(updates)
        before, rebuild = by_leaf(_Leaf, state, updates, "ScaleByShampoo.update")
        count = safe_increment(state.count)
        rule = _Rule(now, count.astype(float), _is_due(now, count, state.has_roots))
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            after = rule.with_roots(matrices, rule.gathered(matrices, leaves, before))
            pairs = [(g, s.mu) for g, s in zip(leaves, before, strict=True)]
            filtered = map_leaves(lambda _, *pair: momentum(now, rule.t, *pair), None, pairs)
            others = [None] * len(leaves) if grafted is None else jtu.tree_leaves(grafted)
            roots = [(s.left_root, s.right_root) for s in after]
            found = leaf_by_leaf(rule.directions, matrices, filtered, others, roots)
            has_roots = state.has_roots | rule.is_due
            out = map_leaves(_started, has_roots, list(zip(found, filtered, others, leaves, strict=True)))
        numbers = {"count": count, "has_roots": has_roots}
        new = ShampooState(*by_field(after, rebuild), **numbers, grafting_state=state.grafting_state)
        return treedef.unflatten(out), grafted, new

    def _matrices(self, tree: PyTree) -> list[Matrix | None]:
        specified: AbstractLabels = self.weight_dimension_numbers
        return matrices_of("ScaleByShampoo(weight_dimension_numbers=...)", specified, tree, hidden=False)

    def _initial(self, p: Array, matrix: Matrix | None) -> _Leaf:
        plain = jax.ShapeDtypeStruct(p.shape, p.dtype)  # of any sharding
        shape = jax.eval_shape(Layout(matrix, self.block_size).of, plain).shape
        dtype = dtype_of_products(p, self.preconditioner_dtype)
        sides = [(*shape[:-2], n, n) for n in shape[-2:]]
        zeros = [jnp.zeros(side, dtype) for side in sides]
        ones = [jnp.broadcast_to(jnp.eye(side[-1], dtype=dtype), side) for side in sides]
        right = (None, None) if matrix is None else (zeros[1], ones[1])
        return _Leaf(zeros_in(p, at_least_float32(p.dtype)), zeros[0], right[0], ones[0], right[1])


def _is_due(now: ScaleByShampoo, count: Array, has_roots: Array) -> Array:
    """Whether the step with this number, from one on, computes roots: those that exist are used until then."""
    return jnp.where(has_roots, is_due(count, now.precondition_frequency), count >= first_due(now))


def first_due(now: Any) -> Any:
    """Return the first step that computes roots or bases."""
    return jnp.round(now.precondition_frequency).astype(jnp.int32) if now.start is None else now.start


def _started(has_roots: Array, u: Array, x: Array, other: Array | None, g: Array) -> Array:
    """The direction; until the first roots, that of the grafting, or the momentum."""
    return jnp.where(has_roots, u, x if other is None else other.astype(u.dtype)).astype(g.dtype)


def bias_of(decay: Array, t: Array) -> Array:
    """Return the bias correction of an average after t steps, and one for a sum."""
    return jnp.where(decay < 1, bias(decay, t), 1.0)


def momentum(now: Any, t: Array, g: Array, mu: Array) -> Array:
    """Return the average of a gradient and the momentum before it, corrected for its start at zero."""
    x = in_dtype(g, at_least_float32(g.dtype))
    b1, t = scalar_like(now.b1, x), scalar_like(t, x)
    b3 = b1 if now.b3 is None else scalar_like(now.b3, x)
    return moment(b3, mu.astype(x.dtype), x) / (1 - b3 * b1 ** (t - 1))


class _Averages(NamedTuple):
    """What every step changes in the state of a leaf."""

    mu: Array
    left: Array | None
    right: Array | None


def with_gradients(
    now: Any, matrices: Sequence[Matrix | None], leaves: Sequence[Array], before: Sequence[T], roots: Sequence[Any]
) -> list[T]:
    """Return the states of all leaves with the new momentum and outer products.

    Args:
        now: the transform, with numbers in the place of schedules.
        matrices: how leaves are matrices.
        leaves: the gradients.
        before: the states before.
        roots: what is between the matrices in the products, as in `gathered`.
    """

    def new_momentum(_: None, x: Array, mu: Array) -> Array:
        b1 = scalar_like(now.b1, x)
        return in_dtype(average(b1, in_dtype(mu, x.dtype), x), mu.dtype)

    def changed(
        matrices: list[Matrix | None], leaves: list[Array], before: list[_Averages], roots: list[Any]
    ) -> list[_Averages]:
        xs = [in_dtype(g, at_least_float32(g.dtype)) for g in leaves]
        after = gathered(now.b2, [Layout(matrix, now.block_size) for matrix in matrices], xs, before, roots)
        mus = map_leaves(new_momentum, None, [(x, s.mu) for x, s in zip(xs, after, strict=True)])
        return [s._replace(mu=mu) for mu, s in zip(mus, after, strict=True)]

    found = leaf_by_leaf(changed, matrices, leaves, [_Averages(s.mu, s.left, s.right) for s in before], roots)
    return [s._replace(**new._asdict()) for s, new in zip(before, found, strict=True)]


class _Rule(NamedTuple):
    """The step of one leaf.

    Args:
        now: the transform, with numbers in the place of schedules.
        t: the number of this step, from one on.
        is_due: whether it computes roots.
    """

    now: ScaleByShampoo
    t: Array
    is_due: Array

    def gathered(self, matrices: list[Matrix | None], leaves: list[Array], before: list[_Leaf]) -> list[_Leaf]:
        """The state of all leaves with the new momentum and outer products."""
        roots = [(s.left_root, s.right_root) if self.now.kl and s.right is not None else (None, None) for s in before]
        return with_gradients(self.now, matrices, leaves, before, roots)

    def with_roots(self, matrices: list[Matrix | None], leaves: list[_Leaf]) -> list[_Leaf]:
        """The leaves with new roots, if these are due."""
        # Those of vectors come last, also in each batch.
        places = sorted(sides_in(leaves), key=lambda place: matrices[place[0]] is None)
        products = [getattr(leaves[i], side) for i, side in places]
        before = [getattr(leaves[i], f"{side}_root") for i, side in places]
        counts: collections.Counter[Hashable] = collections.Counter()
        for (i, _), x in zip(places, products, strict=True):
            counts[x.shape[-2:], x.dtype] += 0 if matrices[i] is None else math.prod(x.shape[:-2])

        def fresh() -> list[Array]:
            found = in_batches(lambda x: self._roots(x, counts[x.shape[-2:], x.dtype]), products)
            return [root for (root,) in found]

        out = list(leaves)
        # Nothing else, because XLA for GPU copies what a branch returns unchanged.
        roots = cond(self.is_due, fresh, lambda: before) if places else []
        for (i, side), root in zip(places, roots, strict=True):
            out[i] = out[i]._replace(**{f"{side}_root": root})
        return out

    def _roots(self, x: Array, count: int) -> tuple[Array, ...]:
        """The roots of a batch whose first factors are those of matrices; the others are those of vectors.

        One loop decomposes them all, because a decomposition takes minutes to compile for a TPU.
        """
        sides = np.where(np.arange(len(x)) < count, 2, 1)[:, None]
        given = self.now.exponent
        exponents = 0.5 / sides if given is None else jnp.broadcast_to(given, sides.shape)

        def root(x: Array, p: Array, sides: Array) -> tuple[Array]:
            b2, eps, t = (scalar_like(y, x) for y in (self.now.b2, self.now.eps, self.t))
            return (inverse_root(x / bias_of(b2, t), p, eps, sides, self.now.preconditioner_dtype),)

        of_all = decomposed(lambda x, *numbers: widely(lambda x: root(x, *numbers))(x))
        return of_all(x, scalar_like(exponents, x), scalar_like(sides, x))

    def directions(
        self,
        matrices: list[Matrix | None],
        leaves: list[Array],
        others: list[Array | None],
        roots: list[tuple[Array, Array | None]],
    ) -> list[Array]:
        """The momentum of each leaf between the roots, in each block with the norm of another direction, if given."""
        given = [
            Leaf(None, Layout(matrix, self.now.block_size), (x,) if y is None else (x, in_dtype(y, x.dtype)), pair)
            for matrix, x, y, pair in zip(matrices, leaves, others, roots, strict=True)
        ]
        return [u for (u,) in on_blocks(_between, given)]


def _between(_: None, x: Array, *given: Any) -> tuple[Array]:
    *others, left, right = given
    u = applied(applied(x, left, "left"), right, "right")
    for other in others:
        lengths = [safe_norm(y, 0.0, axis=(-2, -1), keepdims=True) for y in (other, u)]
        u = lengths[0] / (lengths[1] + _TINY) * u
    return (u,)
