"""Shampoo and KL-Shampoo: gradients between inverse roots of the averages of their outer products."""

import dataclasses
import math
from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool

from .. import authoring as ma
from .._protocol.schedule_values import largest
from .._protocol.transform import Effect
from .._support.arithmetic import is_due, safe_increment
from .._transforms.matrices import matrices_as
from .._transforms.outer_products import average, outer_products, zero_products
from ..authoring._optimizers import AbstractWeightDecay
from ..linalg._eigenbasis import identities
from ..linalg._inverse_root import inverse_root
from ..linalg._products import applied
from ..numerics._norms import safe_norm
from ..tree._paths import leaf_paths
from .muon import MuonDimensionNumbers

T = TypeVar("T", bound=Any)  # a state with a momentum

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


class ShampooState(ma.AbstractState):
    """State of `ScaleByShampoo`: momentum, averages or sums of the outer products, and their inverse roots.

    The matrices are those of blocks: the first axes after those of a batch count the blocks of rows and of columns.
    `right` and `right_root` are None for vectors. `has_roots` tells whether roots have been computed; at first they are
    identities. `grafting_state` is the state of the transform whose norms are taken.
    """

    mu: ma.PyTree = ma.like_params(exact=True, moment=1.0)
    left: ma.PyTree = ma.like_params(exact=True, per_matrix=True, form=_product_form)
    right: ma.PyTree = ma.like_params(exact=True, per_matrix=True, form=_product_form)
    left_root: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True, form=_root_form)
    right_root: ma.PyTree = ma.like_params(preconditioner=True, per_matrix=True, form=_root_form)
    count: ma.Shared[ma.Count] = ma.counter()
    has_roots: ma.Shared[Bool[ma.Array, ""]] = ma.shared(None, kw_only=True, starts=False)
    grafting_state: ma.PyTree = ma.nested()


class AbstractShampooMoments(ma.AbstractFields):
    r"""The hyperparameters of the averages in Shampoo.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products; 1 for their sum, as above.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    b3: ma.OptionalNumber = ma.number(None, needs=ma.DECAY, optional=True)
    eps: ma.Number = ma.number(1e-12)


class AbstractShampooRoots(ma.AbstractFields):
    r"""The hyperparameters of the roots in Shampoo.

    Args:
        precondition_frequency: number $k$ of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default $k$.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
    """

    precondition_frequency: ma.Number = ma.number(1, needs=ma.WHOLE)
    start: int | None = ma.static(None, least=1)
    block_size: int = ma.static(1024, least=1)
    exponent: ma.OptionalNumber = ma.number(None, optional=True)
    grafting: ma.AbstractTransform | None = ma.part(None, optional=True)


class AbstractShampooMatrices(ma.AbstractFields):
    r"""What the matrices of Shampoo are, and the dtype of their preconditioners.

    Args:
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`. With None for an array, as in
            `by_path({"*": None})`, it is one vector of all entries, as small matrices are in Distributed Shampoo.
        preconditioner_dtype: dtype in which outer products and roots are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.
    """

    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))
    _: ma.KW_ONLY
    preconditioner_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByShampoo(
    AbstractShampooMatrices,
    AbstractShampooRoots,
    AbstractShampooMoments,
    ma.AbstractContainer,
    ma.AbstractMatrixwise[ShampooState],
):
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

    On a TPU, whose compiler takes minutes for an eigendecomposition, roots whose inverse exponent is an integer come
    from Newton's method, and the fraction of the largest eigenvalue is added to all eigenvalues.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products; 1 for their sum, as above.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        precondition_frequency: number $k$ of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default $k$.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`. With None for an array, as in
            `by_path({"*": None})`, it is one vector of all entries, as small matrices are in Distributed Shampoo.
        preconditioner_dtype: dtype in which outer products and roots are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.
        kl: whether the outer products are those of KL-Shampoo.

    References:
        Gupta et al., [Shampoo: Preconditioned Stochastic Tensor Optimization](https://arxiv.org/abs/1802.09568), 2018;
        Shi et al., [A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo
        Optimizer](https://arxiv.org/abs/2309.06497), 2023.
    """

    factors: ClassVar = {"left": "left_root", "right": "right_root"}
    improves_first: ClassVar = True
    others: ClassVar = "column"

    grafting: ma.AbstractTransform | None = ma.part(None, optional=True, state="grafting_state", auxiliary=True)
    _: ma.KW_ONLY
    kl: bool = ma.static(False)

    def init_matrix(self, x):
        left, right = zero_products(x, self.preconditioner_dtype)
        mu = ma.zeros_in(x, ma.at_least_float32(x.dtype))
        return ShampooState(mu, left, right, identities(left), identities(right), grafting_state=ma.EmptyState())

    def init_other(self, x):
        return dataclasses.replace(self.init_matrix(x), right=None, right_root=None)

    def init_shared(self, params):
        grafting = ma.EmptyState() if self.grafting is None else self.grafting.init(params)
        return {"grafting_state": grafting}

    def update(
        self, updates: ma.Updates, state: ShampooState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, ShampooState]:
        """Return the preconditioned momentum, and the state with the new outer products and roots."""
        grafted, grafting, transform = None, state.grafting_state, self.resolved(state).grafting
        if transform is not None:
            grafted, grafting = transform.update(updates, grafting, params, **extra)
        out, new = self._step(updates, dataclasses.replace(state, grafting_state=ma.EmptyState()), grafted)
        return out, dataclasses.replace(new, grafting_state=grafting)

    def _prepare(self, count, state):
        step = safe_increment(state.count)
        # Roots that exist are used until the next ones are due.
        is_time = jnp.where(state.has_roots, is_due(step, self.precondition_frequency), step >= first_due(self))
        return count + 1, is_time, state.has_roots | is_time

    def share(self, now):
        return {"has_roots": now[2]}

    def is_time(self, now, count):
        return now[1]

    def accumulate_matrix(self, now, g, s):
        roots = (s.left_root, s.right_root) if self.kl and s.right is not None else ()
        left, right = outer_products(self.b2, g, s, *roots)
        return dataclasses.replace(s, left=left, right=right)

    def improve_factor(self, now, x, factor, about):
        exponent = 0.5 / about.sides if self.exponent is None else self.exponent
        x = x / bias_of(self.b2, now[0])
        return (inverse_root(x, exponent, self.eps, about.sides, self.preconditioner_dtype),)

    def filter_leaf(self, now, g, s):
        return filtered(self, now[0], g, s)

    def update_matrix(self, now, g, s, p):
        u = applied(applied(g, s.left_root, "left"), s.right_root, "right")
        if p is not None:  # the update of the grafting: each block gets its norm
            lengths = [safe_norm(y, 0.0, axis=(-2, -1), keepdims=True) for y in (p, u)]
            u = lengths[0] / (lengths[1] + _TINY) * u
        has_roots = now[2]
        return jnp.where(has_roots, u, g if p is None else p), s

    def _effect(self, tree: ma.Params) -> Effect:
        every, eps = largest(self.precondition_frequency), largest(self.eps)
        if self.grafting is not None or every is None or every <= 1 or eps is None or eps > _TOO_SMALL:
            return Effect()
        paths, sides = leaf_paths(tree), {i: [n for _, n in x.sides] for i, x in self._layouts(tree).items()}
        needed = {paths[i]: math.ceil(max(pair) / min(pair)) for i, pair in sides.items() if min(pair)}
        if max(needed.values(), default=0) <= (every if self.start is None else self.start):
            return Effect()
        most = max(needed, key=needed.__getitem__)
        return Effect(warnings=[
            f"the first roots are those of fewer gradients than `{most}` needs for a factor of full rank. Until the "
            f"next ones, steps in new directions are hundreds of times too long. Give `grafting=ScaleByAdam()`, or "
            f"`start={needed[most]}`."
        ])  # fmt: skip


def first_due(now: Any) -> Any:
    """Return the first step that computes roots or bases."""
    return jnp.round(now.precondition_frequency).astype(jnp.int32) if now.start is None else now.start


def bias_of(decay: ma.Array, t: ma.Array) -> ma.Array:
    """Return the bias correction of an average after t steps, and one for a sum."""
    return jnp.where(decay < 1, ma.bias(decay, t), 1.0)


def filtered(now: Any, t: ma.Array, g: ma.Array, s: T) -> tuple[ma.Array, T]:
    """Return the average of a gradient and the momentum before it, without its bias, and the state after it."""
    b3 = now.b1 if now.b3 is None else now.b3
    return average(b3, s.mu, g) / (1 - b3 * now.b1 ** (t - 1)), dataclasses.replace(s, mu=average(now.b1, s.mu, g))


class AbstractDecayedShampoo(AbstractShampooMatrices, ma.AbstractDecayed, AbstractShampooRoots, AbstractWeightDecay):
    """The hyperparameters of Shampoo and KL-Shampoo, without those of the averages."""


class Shampoo(AbstractDecayedShampoo, AbstractShampooMoments, ma.AbstractRated):
    r"""Preconditions the gradient of each matrix by inverse fourth roots of the sums of its outer products.

        optimizer = Shampoo(1e-3, b2=0.99, precondition_frequency=10, grafting=ScaleByAdam())

    $$
    \begin{aligned}
    L_t &= L_{t-1} + g_t g_t^\top, \qquad R_t = R_{t-1} + g_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    u_t &= (L_t + \varepsilon I)^{-1/4}\, \hat m_t\, (R_t + \varepsilon I)^{-1/4} \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix; see `ScaleByShampoo` for vectors, blocks and roots. With
    `grafting=ScaleByAdam()`, a step has the length of one of Adam, and takes learning rates of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the outer products; 1 for their sum, as above.
        b3: exponential decay rate of the average of momentum and gradient that is preconditioned; by default $\beta_1$,
            for the momentum itself.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number $k$ of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default $k$.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`. With None for an array, as in
            `by_path({"*": None})`, it is one vector of all entries, as small matrices are in Distributed Shampoo.
        preconditioner_dtype: dtype in which outer products and roots are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Gupta et al., [Shampoo: Preconditioned Stochastic Tensor Optimization](https://arxiv.org/abs/1802.09568), 2018;
        Shi et al., [A Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo
        Optimizer](https://arxiv.org/abs/2309.06497), 2023.
    """

    direction = ScaleByShampoo
    learning_rate: ma.Number = ma.number(1e-2)


class AbstractKLShampooMoments(ma.AbstractFields):
    r"""The hyperparameters of the averages in KL-Shampoo.

    Args:
        b1: exponential decay rate $\beta_1$ of the momentum $m$.
        b2: exponential decay rate of the outer products; 1 for their sum, as above.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    eps: ma.Number = ma.number(1e-12)


class KLShampoo(AbstractDecayedShampoo, AbstractKLShampooMoments, ma.AbstractRated):
    r"""Shampoo whose two factors whiten each other's outer products.

        optimizer = KLShampoo(1e-3, b2=0.99, precondition_frequency=10, grafting=ScaleByAdam())

    $$
    \begin{aligned}
    L_t &= L_{t-1} + g_t R^{-1/2} g_t^\top, \qquad R_t = R_{t-1} + g_t^\top L^{-1/2} g_t \\
    u_t &= (L_t + \varepsilon I)^{-1/4}\, \hat m_t\, (R_t + \varepsilon I)^{-1/4} \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    $L^{-1/4}$ and $R^{-1/4}$ are those that were computed last. All else is as in `Shampoo`. The paper has the exponent
    1/2 in place of 1/4: `exponent=0.5`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum $m$.
        b2: exponential decay rate of the outer products; 1 for their sum, as above.
        eps: $\varepsilon$, added to the diagonal; eigenvalues are at least this. In float32, they are also at least
            $10^{-6}$ times the largest one, and $10^{-3}$ times with `exponent=0.5` for matrices.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        precondition_frequency: number $k$ of steps between two computations of the roots. With more than one, give a
            `grafting`, or a `start` at which the factors of vectors have full rank: outside of the gradients before
            it, the steps are hundreds of times too long until the next computation.
        start: the first step with roots; by default $k$.
        block_size: the longest side of a block of a matrix that has factors of its own.
        exponent: the exponent of each root; by default 1/4 for matrices, and 1/2 for vectors.
        grafting: a transform that gives the norms of the updates, without learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`. With None for an array, as in
            `by_path({"*": None})`, it is one vector of all entries, as small matrices are in Distributed Shampoo.
        preconditioner_dtype: dtype in which outer products and roots are kept; by default that of the parameters, at
            least float32. They are computed in at least float32. In bfloat16, averages with a decay rate above 0.99
            stop moving.

    References:
        Lin et al., [Understanding and Improving the Shampoo Optimizer via Kullback-Leibler
        Minimization](https://arxiv.org/abs/2509.03378), 2025, and the
        [code](https://github.com/facebookresearch/optimizers) of Distributed Shampoo.
    """

    direction = ScaleByShampoo
    kl: ClassVar[bool] = True
    learning_rate: ma.Number = ma.number(1e-2)
