"""The direction of Kron, PSGD with a Kronecker-factored preconditioner: momentum that random factors whiten.

A matrix has a factor for its rows, `left`, and one for its columns, `right`, each of which is triangular or diagonal
(`_Kind`). A step of a factor compares the whitened gradient with whitened noise (`_improved`). Factors and gradients
are divided by their largest entries first, so that no product of them overflows before the update is clipped.
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, choice, number
from .._protocol.schedule_values import at_start
from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    bias,
    default_float,
    moment,
    real_dtype,
    safe_increment,
    safe_sqrt,
    scalar_like,
    zeros_in,
)
from .._support.checks import DECAY, FRACTION
from .._support.keys import key, next_keys
from .._support.module import AbstractState, like_params, shared
from .._support.types import Count, Params, Updates
from .._support.varying import cond
from ..linalg._eigenbasis import SIDES, Side, largest_entry, outer_product
from ..linalg._products import adjoint, product
from ..tree._leafmap import map_with
from .batches import in_batches
from .matrices import Matrix, matrices_as
from .matrix_rule import AbstractMatrixRule, by_field, by_leaf
from .muon import MuonDimensionNumbers
from .outer_products import applied

DIAGONAL = ("none", "longer", "one", "all")

_DAMPING = float(np.sqrt(np.finfo(np.float32).eps))  # of the noise in a gradient, in the authors' code for all dtypes
_BALANCED = 0.01  # the fraction of the steps of the factors that balance them first
_MOST_RMS = 1.1  # that of whitened gradients is about one


class KronState(AbstractState):
    """State of `ScaleByKron`: momentum, factors, the number of steps since their last one, and raw data of a key.

    `left` and `right` are triangular matrices or the diagonals of diagonal ones. `right` is None for leaves that aren't
    matrices, whose diagonal has the shape of the parameter.
    """

    mu: PyTree = like_params(moment=1.0)
    left: PyTree = like_params(exact=True)
    right: PyTree = like_params(exact=True)
    update_counter: Count = shared()
    rng_key: Array = shared()
    count: Count = shared()


class _Leaf(NamedTuple):
    """The state of one leaf."""

    mu: Array
    left: Array
    right: Array | None

    def with_factors(self, factors: Sequence[Array]) -> "_Leaf":
        """The leaf with other factors, of which those of `_Kind.factors` may have an axis more."""
        stored = {side: q.reshape(getattr(self, side).shape) for side, q in zip(SIDES, factors, strict=False)}
        return self._replace(**stored)


class ScaleByKron(AbstractMatrixRule):
    r"""Whitens the momentum of each matrix by two triangular factors: the direction of Kron (PSGD).

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \hat m_t = m_t / (1 - \beta^t) \\
    x_t &= \hat m_t + \sqrt{\epsilon}\, \overline{|\hat m_t|}\, V_t, \qquad V_{t,ij} \sim \mathcal{N}(0, 1) \\
    A_t &= Q_L x_t Q_R^\top, \qquad B_t = Q_L^{-\top} V_t Q_R^{-1} \\
    Q_L &\leftarrow Q_L - \mu \frac{\operatorname{triu}(A_t A_t^\top - B_t B_t^\top)}
        {\|A_t A_t^\top + B_t B_t^\top\|} Q_L, \qquad
    Q_R \leftarrow Q_R - \mu \frac{\operatorname{triu}(A_t^\top A_t - B_t^\top B_t)}
        {\|A_t^\top A_t + B_t^\top B_t\|} Q_R \\
    u_t &= Q_L^\top Q_L\, x_t\, Q_R^\top Q_R, \qquad u_t \leftarrow u_t \min(1, 1.1 / \operatorname{RMS}(u_t))
    \end{aligned}
    $$

    The $Q$ are upper triangular matrices and start as multiples of the identity. $\|\cdot\|$ is a lower bound of the
    spectral norm, by one power step. A side that is longer than `max_size_triangular` has a diagonal $Q$, whose norm is
    the largest entry. All other leaves have one factor, a diagonal. $\epsilon$ is that of float32.

    The lines of $x$ and of the $Q$ apply every $1 / p$ steps; in between, $x_t = \hat m_t$. In 1 % of the steps of the
    factors, chosen at random, $Q_L$ and $Q_R$ are first multiplied by numbers that make their largest entries equal.
    The factors of a matrix of zeros don't change.

    Triangular and diagonal matrices depend on the basis. So rotated parameters don't follow a rotated trajectory,
    unlike with `ScaleByShampoo`.

    Args:
        b1: exponential decay rate $\beta$ of the momentum.
        preconditioner_update_probability: the fraction $p$ of the steps in which the factors move. They do so after
            regular intervals, and not at random. `Kron` lets it fall.
        precond_lr: learning rate $\mu$ of the factors.
        precond_init_scale: the first preconditioner, $Q_L \otimes Q_R$, is this times the identity.
        max_size_triangular: the longest side with a triangular factor.
        min_ndim_triangular: the smallest number of axes of an array with triangular factors: 1 for vectors too.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        diagonal: which sides of a matrix have diagonal factors, whatever their length: `"none"`, `"longer"` for the
            longer one of two sides of different lengths, `"one"` for that or the inputs of a square matrix, or `"all"`.
            The authors' `memory_save_mode` is None, `"smart_one_diag"`, `"one_diag"` or `"all_diag"`.
        momentum_into_precond_update: whether $x_t$ in the lines of the $Q$ is the momentum, as above, and not the
            gradient. In the line of $u_t$, it is $\hat m_t$ then, without noise.
        key: a seed, or a JAX key, for $V$ and the balancing.

    References:
        Li, [Preconditioner on Matrix Lie Group for SGD](https://arxiv.org/abs/1809.10232), 2018;
        Li, [Preconditioned Stochastic Gradient Descent](https://arxiv.org/abs/1512.04202), 2015; Walters et al., the
        [code](https://github.com/evanatyourservice/kron_torch) of Kron, 2024.
    """

    b1: Number = number(0.9, needs=DECAY)
    preconditioner_update_probability: Number = number(1.0, needs=FRACTION)
    precond_lr: Number = number(0.1)
    precond_init_scale: Number = number(1.0)
    max_size_triangular: int = eqx.field(static=True, default=8192, metadata={"least": 0})
    min_ndim_triangular: int = eqx.field(static=True, default=2, metadata={"least": 0})
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    _: dataclasses.KW_ONLY
    diagonal: str = choice(DIAGONAL, "none")
    momentum_into_precond_update: bool = eqx.field(static=True, default=True)
    key: Any = key()

    def init(self, params: Params) -> KronState:
        """Return momenta of zeros, multiples of the identity as factors, and a copy of the key."""
        leaves, treedef = jtu.tree_flatten(params)
        scale = at_start(self.precond_init_scale)
        found = [_initial(scale, p, k) for p, k in zip(leaves, self._kinds(params), strict=True)]
        trees = by_field(found, [treedef.unflatten] * len(_Leaf._fields))
        kept, zero = jnp.array(self.key, copy=True), jnp.zeros((), jnp.int32)
        return KronState(*trees, update_counter=zero, rng_key=kept, count=jnp.zeros((), jnp.int32))

    def _direction(self, updates: Updates, state: KronState) -> tuple[Updates, KronState]:
        now = self.at(state)
        leaves, treedef = jtu.tree_flatten(updates)
        kinds = self._kinds(updates)
        before, rebuild = by_leaf(_Leaf, state, updates, "ScaleByKron.update")
        since = safe_increment(state.update_counter)
        # The inverse of 1 / 61 in float32 is more than 61.
        is_due = since.astype(float) * jnp.asarray(now.preconditioner_update_probability, float) >= 1 - 1e-5
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            t = safe_increment(state.count).astype(float)
            average = functools.partial(_averaged, now.b1, t)
            rows = map_with(average, kinds, list(zip(leaves, before, strict=True)))
            gradients, momenta, after = [x for x, _, _ in rows], [x for _, x, _ in rows], [s for *_, s in rows]

            def moved() -> tuple[list[Array], list[_Leaf]]:
                xs = momenta if self.momentum_into_precond_update else gradients
                noisy, new = now._with_next_factors(state, kinds, xs, after)
                return noisy if self.momentum_into_precond_update else momenta, new

            momenta, after = cond(is_due, moved, lambda: (momenta, after))
            found = map_with(_clipped, kinds, list(zip(momenta, after, strict=True)))
        out = [kind.back(u).astype(g.dtype) for kind, u, g in zip(kinds, found, leaves, strict=True)]
        since, (kept, _) = jnp.where(is_due, jnp.zeros_like(since), since), next_keys(state.rng_key, 0)
        trees, count = by_field(after, rebuild), safe_increment(state.count)
        return treedef.unflatten(out), KronState(*trees, update_counter=since, rng_key=kept, count=count)

    def _with_next_factors(
        self, state: KronState, kinds: "list[_Kind]", xs: list[Array], leaves: list[_Leaf]
    ) -> tuple[list[Array], list[_Leaf]]:
        """The matrices with noise, and the leaves after a step of their factors."""
        is_balanced, noise = self._drawn(state, xs)
        step = jax.jit(functools.partial(_improved, self.precond_lr, is_balanced))
        factors = [kind.factors(s) for kind, s in zip(kinds, leaves, strict=True)]
        xs, leaves, found = list(xs), list(leaves), []
        for count in (1, 2):  # of factors: in one batch, all have as many
            places = [i for i, kind in enumerate(kinds) if len(kind.triangular) == count]
            columns: list[list[Any]] = [[factors[i][k] for i in places] for k in range(count)]
            before = [left for left, *_ in found]
            found = in_batches(step, [noise[i] for i in places], [xs[i] for i in places], *columns, after=before)
            for i, (*new, x) in zip(places, found, strict=True):
                xs[i], leaves[i] = x, leaves[i].with_factors(new)
        return xs, leaves

    def _drawn(self, state: KronState, like: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Whether this step balances the factors, and standard normal numbers like the matrices of each leaf.

        The tests against the released code put its numbers in their place.
        """
        kinds = collections.defaultdict[Any, list[int]](list)
        for i, x in enumerate(like):
            kinds[x.shape, x.dtype].append(i)
        _, (first, *keys) = next_keys(state.rng_key, 1 + len(kinds))
        noise = list(like)
        for k, ((shape, dtype), places) in zip(keys, kinds.items(), strict=True):
            # All of one shape at once, because a generator takes long to compile.
            for i, v in zip(places, jax.random.normal(k, (len(places), *shape), dtype), strict=True):
                noise[i] = v
        return jax.random.uniform(first) < _BALANCED, noise

    def _kinds(self, tree: PyTree) -> "list[_Kind]":
        return [
            _Kind(tuple(x.shape), matrix, self._triangular((x.size,) if matrix is None else matrix.size))
            for x, matrix in zip(jtu.tree_leaves(tree), self._matrices(tree), strict=True)
        ]

    def _triangular(self, sizes: tuple[int, ...]) -> tuple[bool, ...]:
        """Which sides of these lengths have triangular factors."""
        is_diagonal = [
            n < 2 or n > self.max_size_triangular or len(sizes) < self.min_ndim_triangular or self.diagonal == "all"
            for n in sizes
        ]
        longest = sizes.index(max(sizes))
        if self.diagonal == "one" or (self.diagonal == "longer" and len(set(sizes)) > 1):
            is_diagonal[longest] = True
        return tuple(not x for x in is_diagonal)


class _Kind(NamedTuple):
    """What a leaf is: its shape, how it is a batch of matrices, and which of their sides have triangular factors."""

    shape: tuple[int, ...]
    matrix: Matrix | None
    triangular: tuple[bool, ...]

    @property
    def form(self) -> tuple[int, ...]:
        """The shape of its matrices; anything else is one column."""
        if self.matrix is None:
            return (int(np.prod(self.shape)), 1)
        return (*(self.shape[axis] for axis in self.matrix.batch), *self.matrix.size)

    def of(self, x: Array) -> Array:
        return x.reshape(self.form) if self.matrix is None else self.matrix.of(x)

    def back(self, x: Array) -> Array:
        return x.reshape(self.shape) if self.matrix is None else self.matrix.back(x)

    def factors(self, leaf: _Leaf) -> "_Factors":
        """The factors as matrices; diagonals are a column for the left side, and a row for the right one."""
        *batch, rows, columns = self.form
        left = leaf.left if self.triangular[0] else leaf.left.reshape(*batch, rows, 1)
        if leaf.right is None:
            return _Factors(left, None)
        return _Factors(left, leaf.right if self.triangular[1] else leaf.right.reshape(*batch, 1, columns))


class _Factors(NamedTuple):
    """The factors of the matrices of one leaf, which broadcast with them where they are diagonal."""

    left: Array
    right: Array | None

    def whitened(self, x: Array) -> Array:
        """Multiply matrices by both factors: $Q_L X Q_R^*$."""
        return _times(self.right, _times(self.left, x, "left"), "right")

    def whitened_back(self, x: Array) -> Array:
        """Multiply matrices by the adjoints of both factors: $Q_L^* X Q_R$."""
        return _times(self.right, _times(self.left, x, "left", back=True), "right", back=True)

    def colored(self, x: Array) -> Array:
        """Divide matrices by the adjoints of both factors: $Q_L^{-*} X Q_R^{-1}$."""
        return _divided(self.right, _divided(self.left, x, "left"), "right")

    def scaled(self) -> "tuple[_Factors, Array]":
        """Return the factors divided by their largest entries, and the product of these."""
        most = largest_entry(self.left)
        if self.right is None:
            return _Factors(self.left / most, None), most
        of_right = largest_entry(self.right)
        return _Factors(self.left / most, self.right / of_right), most * of_right

    def balanced(self, is_due: Array) -> "_Factors":
        """Return the factors with equal largest entries, and the same Kronecker product; or as they are."""
        if self.right is None:
            return self
        left, right = (jnp.max(jnp.abs(q), axis=(-2, -1), keepdims=True) for q in (self.left, self.right))
        by = jnp.sqrt(jnp.where(is_due, right / left, 1))
        return _Factors(self.left * by, self.right / by)


def _is_diagonal(q: Array) -> bool:
    return 1 in q.shape[-2:]


def _times(q: Array | None, x: Array, side: Side, back: bool = False) -> Array:
    if q is None:
        return x
    if _is_diagonal(q):
        return q * x
    return applied(x, adjoint(q) if back == (side == "left") else q, side)


def _divided(q: Array | None, x: Array, side: Side) -> Array:
    if q is None:
        return x
    if _is_diagonal(q):
        return x / q
    is_left = side == "left"
    return jax.lax.linalg.triangular_solve(q, x, left_side=is_left, transpose_a=is_left, conjugate_a=is_left)


def _initial(scale: Any, p: Array, kind: _Kind) -> _Leaf:
    """No momentum, and multiples of the identity."""
    dtype = at_least_float32(p.dtype)
    scale = jnp.asarray(scale, default_float()) ** (1 / len(kind.triangular))
    scale = scale.astype(real_dtype(dtype))

    def factor(shape: tuple[int, ...], is_triangular: bool) -> Array:
        if is_triangular:
            return jnp.broadcast_to(scale.astype(dtype) * jnp.eye(shape[-1], dtype=dtype), (*shape, shape[-1]))
        return jnp.full(shape, scale)

    *batch, rows, columns = kind.form
    if kind.matrix is None:
        shape = (rows,) if kind.triangular[0] else kind.shape
        return _Leaf(zeros_in(p, None), factor(shape, kind.triangular[0]), None)
    left, right = (factor((*batch, n), x) for n, x in zip((rows, columns), kind.triangular, strict=True))
    return _Leaf(zeros_in(p, None), left, right)


def _averaged(b1: Array, t: Array, kind: _Kind, g: Array, s: _Leaf) -> tuple[Array, Array, _Leaf]:
    """The gradient and the momentum as matrices, and the leaf with the new momentum."""
    x = g.astype(at_least_float32(g.dtype))
    b1, t = (scalar_like(y, x) for y in (b1, t))
    mu = moment(b1, s.mu.astype(x.dtype), x)
    return kind.of(x), kind.of(mu / bias(b1, t)), s._replace(mu=mu.astype(s.mu.dtype))


def _noisy(x: Array, noise: Array) -> Array:
    largest = largest_entry(x)
    return x + _DAMPING * largest * jnp.mean(jnp.abs(x / largest), axis=(-2, -1), keepdims=True) * noise


def _whitened(factors: _Factors, x: Array) -> tuple[_Factors, Array, Array]:
    """Scaled factors, scaled matrices that they whiten, and the scale of what they whiten twice."""
    scaled, most = factors.scaled()
    largest = largest_entry(x)
    return scaled, scaled.whitened(x / largest), most * largest * most


def _improved(
    learning_rate: Array, is_balanced: Array, noise: Array, x: Array, left: Array, right: Array | None = None
) -> tuple[Array, ...]:
    """The factors of matrices after a step, and the matrices with noise."""
    x = _noisy(x, noise)
    factors = _Factors(left, right).balanced(is_balanced)
    scaled, a, scale = _whitened(factors, x)
    # Only the ratio of A and B matters.
    a, b = a * jnp.minimum(scale, 1), scaled.colored(noise) * jnp.minimum(1 / scale, 1)
    largest = largest_entry(jnp.maximum(jnp.abs(a), jnp.abs(b)))
    is_zero = jnp.all(x == 0, axis=(-2, -1), keepdims=True)
    rate = jnp.where(is_zero, 0, scalar_like(learning_rate, x))
    a, b = a / largest, b / largest
    new_left = factors.left - rate * _change(factors.left, a, b, "left")
    if factors.right is None:
        return new_left, x
    return new_left, factors.right - rate * _change(factors.right, a, b, "right"), x


def _change(q: Array, a: Array, b: Array, side: Side) -> Array:
    """The step of a factor, divided by its learning rate."""
    if _is_diagonal(q):
        axis = -1 if side == "left" else -2
        of_a, of_b = (jnp.sum(abs_sq(x), axis=axis, keepdims=True) for x in (a, b))
        return (of_a - of_b) / _or_one(jnp.max(of_a + of_b, axis=(-2, -1), keepdims=True, initial=0)) * q
    of_a, of_b = outer_product(a, side), outer_product(b, side)
    return product(jnp.triu(of_a - of_b) / _or_one(_norm_bound(of_a + of_b)), q)


def _norm_bound(x: Array) -> Array:
    """A lower bound of the spectral norm of positive semidefinite matrices: a power step from the longest column."""
    largest = largest_entry(x)
    x = x / largest
    longest = jnp.argmax(jnp.sum(abs_sq(x), axis=-2), axis=-1)
    y = product(x, jnp.take_along_axis(x, longest[..., None, None], axis=-1))
    return _length(product(x, y / _or_one(_length(y)))) * largest


def _length(x: Array) -> Array:
    return safe_sqrt(jnp.sum(abs_sq(x), axis=-2, keepdims=True))


def _or_one(x: Array) -> Array:
    """A divisor that isn't negative, or one where it is zero."""
    return jnp.where(x > 0, x, 1)


def _clipped(kind: _Kind, x: Array, s: _Leaf) -> Array:
    """The whitened matrices, each of which has a bounded root mean square."""
    factors, a, scale = _whitened(kind.factors(s), x)
    u = factors.whitened_back(a)
    rms = safe_sqrt(jnp.mean(abs_sq(u), axis=(-2, -1), keepdims=True))
    return u * jnp.minimum(scale, _MOST_RMS / _or_one(rms))
