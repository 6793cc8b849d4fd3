"""Kron, PSGD with a Kronecker-factored preconditioner: momentum that random factors whiten.

A matrix has a factor for its rows, `left`, and one for its columns, `right`, each of which is triangular or diagonal
(`_factors`). A step of a factor compares the whitened gradient with whitened noise (`_improved`). Factors and gradients
are divided by their largest entries first, so that no product of them overflows before the update is clipped.
"""

import collections
import dataclasses
import math
import operator
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import authoring as ma
from .._support.arithmetic import real_dtype, safe_increment, scalar_like
from .._support.keys import key, next_keys
from .._transforms.matrices import matrices_as
from .._transforms.outer_products import norm
from ..authoring._optimizers import AbstractWeightDecay
from ..linalg._eigenbasis import largest_entry
from ..linalg._products import SIDES, Product, Side, adjoint, applied, product, rare_product
from ..linalg._triangular import divided_by_triangle
from ..schedules import ExponentialDecay
from .muon import MuonDimensionNumbers

DIAGONAL = ("none", "longer", "one", "all")

_DAMPING = float(np.sqrt(np.finfo(np.float32).eps))  # of the noise in a gradient, in the authors' code for all dtypes
_BALANCED = 0.01  # the fraction of the steps of the factors that balance them first
_MOST_RMS = 1.1  # that of whitened gradients is about one

Factors = dict[Side, ma.Array]  # of matrices, with which diagonals broadcast


class KronState(ma.AbstractState):
    """State of `ScaleByKron`: momentum, factors, the number of steps since their last one, and raw data of a key.

    `left` and `right` are triangular matrices or the diagonals of diagonal ones. `right` is None for leaves that aren't
    matrices, whose diagonal has the shape of the parameter.
    """

    mu: ma.PyTree = ma.like_params(moment=1.0)
    left: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    right: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    update_counter: ma.Shared[ma.Count] = ma.shared(None, starts=0)
    rng_key: ma.Shared[ma.Array] = ma.shared(None)
    count: ma.Shared[ma.Count] = ma.shared(None)


class _Now(NamedTuple):
    """What a step of the factors needs, and what the next steps do.

    Args:
        unbias: the bias correction of the momentum.
        is_due: whether the factors move.
        since: the number of steps since they moved.
        key: the key of the next step.
        is_balanced: whether they are balanced before they move.
    """

    unbias: ma.Array
    is_due: ma.Array
    since: ma.Array
    key: ma.Array
    is_balanced: Any = None


class AbstractKronMomentum(ma.AbstractFields):
    r"""The hyperparameter of the momentum in Kron.

    Args:
        b1: exponential decay rate $\beta$ of the momentum.
    """

    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)


class AbstractKronFactors(AbstractKronMomentum):
    r"""The hyperparameters of the momentum and the factors in Kron.

    Args:
        preconditioner_update_probability: the fraction $p$ of the steps in which the factors move, every $1 / p$
            steps; by default, in `Kron`, 1 for 500 steps, then $e^{-(t - 500) / 1000}$, and at least 0.03.
        precond_lr: learning rate $\mu$ of the factors.
        precond_init_scale: the first preconditioner, $Q_L \otimes Q_R$, is this times the identity.
        max_size_triangular: the longest side with a triangular factor; that of a longer one is diagonal.
        min_ndim_triangular: the smallest number of axes of an array with triangular factors: 1 for vectors too.
    """

    preconditioner_update_probability: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    precond_lr: ma.Number = ma.number(0.1)
    precond_init_scale: ma.Number = ma.number(1.0)
    max_size_triangular: int = ma.static(8192, least=0)
    min_ndim_triangular: int = ma.static(2, least=0)


class AbstractKron(AbstractKronFactors):
    r"""The hyperparameters of Kron.

    Args:
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        diagonal: which sides of a matrix have diagonal factors, whatever their length: `"none"`, `"longer"` for the
            longer one of two sides of different lengths, `"one"` for that or the inputs of a square matrix, or `"all"`.
            The authors' `memory_save_mode` is None, `"smart_one_diag"`, `"one_diag"` or `"all_diag"`.
        momentum_into_precond_update: whether $x_t$ in the lines of the $Q$ is the momentum, as above, and not the
            gradient. In the line of $u_t$, it is $\hat m_t$ then, without noise.
        key: a seed, or a JAX key, for $V$ and the balancing.
        block_size: the longest side of the blocks that matrices are divided into, each with factors and an RMS of its
            own; by default, matrices are whole. A step of a square matrix of width $n$ takes in the order of $n^3$
            operations without blocks, and $n^2 b$ with blocks of width $b$. In the authors' `distributed_kron`, the
            width is 256, and the RMS is that of the whole array.
    """

    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))
    _: ma.KW_ONLY
    diagonal: str = ma.choice(DIAGONAL, "none")
    momentum_into_precond_update: bool = ma.static(True)
    key: Any = key()
    block_size: int | None = ma.static(None, least=1)


class ScaleByKron(AbstractKron, ma.AbstractMatrixwise[KronState]):
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
        preconditioner_update_probability: the fraction $p$ of the steps in which the factors move, every $1 / p$
            steps; by default, in `Kron`, 1 for 500 steps, then $e^{-(t - 500) / 1000}$, and at least 0.03.
        precond_lr: learning rate $\mu$ of the factors.
        precond_init_scale: the first preconditioner, $Q_L \otimes Q_R$, is this times the identity.
        max_size_triangular: the longest side with a triangular factor; that of a longer one is diagonal.
        min_ndim_triangular: the smallest number of axes of an array with triangular factors: 1 for vectors too.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        diagonal: which sides of a matrix have diagonal factors, whatever their length: `"none"`, `"longer"` for the
            longer one of two sides of different lengths, `"one"` for that or the inputs of a square matrix, or `"all"`.
            The authors' `memory_save_mode` is None, `"smart_one_diag"`, `"one_diag"` or `"all_diag"`.
        momentum_into_precond_update: whether $x_t$ in the lines of the $Q$ is the momentum, as above, and not the
            gradient. In the line of $u_t$, it is $\hat m_t$ then, without noise.
        key: a seed, or a JAX key, for $V$ and the balancing.
        block_size: the longest side of the blocks that matrices are divided into, each with factors and an RMS of its
            own; by default, matrices are whole. A step of a square matrix of width $n$ takes in the order of $n^3$
            operations without blocks, and $n^2 b$ with blocks of width $b$. In the authors' `distributed_kron`, the
            width is 256, and the RMS is that of the whole array.

    References:
        Li, [Preconditioner on Matrix Lie Group for SGD](https://arxiv.org/abs/1809.10232), 2018;
        Li, [Preconditioned Stochastic Gradient Descent](https://arxiv.org/abs/1512.04202), 2015; Walters et al., the
        [code](https://github.com/evanatyourservice/kron_torch) of Kron, 2024.
    """

    improved: ClassVar = ("left", "right")
    others: ClassVar = "array"

    @property
    def _improves_updates(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the momentum has noise when the factors move."""
        return self.momentum_into_precond_update

    def init_matrix(self, x):
        batch, sizes = x.shape[:-2], x.shape[-2:]
        left, right = (
            self._identity(x, (*batch, n), is_triangular, 2)
            for n, is_triangular in zip(sizes, self._triangular(sizes), strict=True)
        )
        return KronState(ma.zeros_in(x, None), left, right)

    def init_other(self, x):
        (is_triangular,) = self._triangular((x.size,))
        return KronState(
            ma.zeros_in(x, None), self._identity(x, (x.size,) if is_triangular else x.shape, is_triangular, 1), None
        )

    def init_shared(self, params):
        del params
        return {"rng_key": jnp.array(self.key, copy=True)}

    def _prepare(self, count, state):
        since = safe_increment(state.update_counter)
        # The inverse of 1 / 61 in float32 is more than 61.
        is_due = since.astype(float) * jnp.asarray(self.preconditioner_update_probability, float) >= 1 - 1e-5
        kept, _ = next_keys(state.rng_key, 0)
        since = jnp.where(is_due, jnp.zeros_like(since), since)
        return _Now(ma.bias(self.b1, count + 1), is_due, since, kept)

    def share(self, now):
        return {"update_counter": now.since, "rng_key": now.key}

    def is_time(self, now, count):
        del count
        return now.is_due

    def filter_leaf(self, now, g, s):
        mu = ma.moment(self.b1, s.mu, g)
        x, new = mu / now.unbias, dataclasses.replace(s, mu=mu)
        return ((x,) if self.momentum_into_precond_update else (x, g)), new

    def _improve(self, now, g, s, noise: Any):
        *kept, x = g
        noise = _column(noise, s)
        x = _noisy(_column(x, s), noise)
        new = _improved(self.precond_lr, now.is_balanced, noise, x, _factors(s, x))
        stored = {side: q.reshape(getattr(s, side).shape) for side, q in new.items()}
        return (*kept, x.reshape(g[-1].shape)), dataclasses.replace(s, **stored)

    def _beside(self, updates, params):
        del params
        is_padded = self.block_size is not None and any(x.is_padded for x in self._layouts(updates).values())
        # Ones in the entries that there are, because zeros fill blocks up.
        return jtu.tree_map(lambda g: jnp.ones_like(g, dtype=real_dtype(g.dtype)), updates) if is_padded else None

    def update_matrix(self, now, g, s, p):
        del now
        x = _column(g[0], s)
        factors, a, scale = _whitened(_factors(s, x), x)
        u = _times(factors, a, back=True)
        there = None if p is None else _column(p, s) > 0
        rms = ma.safe_sqrt(jnp.mean(ma.abs_sq(u), axis=(-2, -1), keepdims=True, where=there))
        return (u * jnp.minimum(scale, _MOST_RMS / _or_one(rms))).reshape(g[0].shape), s

    def _draw(self, now, state, gs, states):
        kinds = collections.defaultdict[Any, list[int]](list)
        xs = [_column(x, s) for (*_, x), s in zip(gs, states, strict=True)]
        for i, x in enumerate(xs):
            kinds[x.shape, x.dtype].append(i)
        _, (first, *keys) = next_keys(state.rng_key, 1 + len(kinds))
        noise = list(xs)
        for k, ((shape, dtype), places) in zip(keys, kinds.items(), strict=True):
            # All of one shape at once, because a generator takes long to compile.
            for i, v in zip(places, jax.random.normal(k, (len(places), *shape), dtype), strict=True):
                noise[i] = v if v.shape == (x := gs[i][-1]).shape else v.reshape(x.shape)
        return now._replace(is_balanced=jax.random.uniform(first) < _BALANCED), noise, states

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

    def _identity(self, x: ma.Array, shape: tuple[int, ...], is_triangular: bool, sides: int) -> ma.Array:
        """Multiples of the identity in a shape without their columns, for one of so many sides."""
        dtype = ma.at_least_float32(x.dtype)
        scale = jnp.asarray(ma.at_start(self.precond_init_scale), ma.default_float()) ** (1 / sides)
        scale = scale.astype(real_dtype(dtype))
        if is_triangular:
            return jnp.broadcast_to(scale.astype(dtype) * jnp.eye(shape[-1], dtype=dtype), (*shape, shape[-1]))
        return jnp.full(shape, scale)


def _column(x: ma.Array, s: KronState) -> ma.Array:
    """Matrices as they are, and any other array as one column."""
    return x.reshape(-1, 1) if s.right is None else x


def _factors(s: KronState, x: ma.Array) -> Factors:
    """The factors of matrices: diagonals are a column for the left side, and a row for the right one."""
    *batch, rows, columns = x.shape
    found: Factors = {}
    for side, shape in zip(SIDES, ((rows, 1), (1, columns)), strict=True):
        q, n = getattr(s, side), max(shape)
        if q is not None:
            found[side] = q if q.shape == (*batch, n, n) else q.reshape(*batch, *shape)
    return found


def _is_diagonal(q: ma.Array) -> bool:
    return 1 in q.shape[-2:]


def _times(factors: Factors, x: ma.Array, product: Product = product, *, back: bool = False) -> ma.Array:
    """Matrices multiplied by both factors, $Q_L X Q_R^*$, or back by their adjoints, $Q_L^* X Q_R$."""
    for side, q in factors.items():
        if _is_diagonal(q):
            x = q * x
        else:
            x = applied(x, adjoint(q) if back == (side == "left") else q, side, product)
    return x


def _divided(factors: Factors, x: ma.Array) -> ma.Array:
    """Matrices divided by the adjoints of both factors: $Q_L^{-*} X Q_R^{-1}$."""
    for side, q in factors.items():
        if _is_diagonal(q):
            x = x / q
        else:
            x = divided_by_triangle(x, q) if side == "right" else adjoint(divided_by_triangle(adjoint(x), q))
    return x


def _balanced(factors: Factors, is_due: ma.Array) -> Factors:
    """Factors with equal largest entries, and the same Kronecker product; or as they are."""
    if len(factors) < 2:
        return factors
    left, right = (jnp.max(jnp.abs(q), axis=(-2, -1), keepdims=True) for q in factors.values())
    by = jnp.sqrt(jnp.where(is_due, right / left, 1))
    return {"left": factors["left"] * by, "right": factors["right"] / by}


def _noisy(x: ma.Array, noise: ma.Array) -> ma.Array:
    largest = largest_entry(x)
    return x + _DAMPING * largest * jnp.mean(jnp.abs(x / largest), axis=(-2, -1), keepdims=True) * noise


def _whitened(factors: Factors, x: ma.Array, product: Product = product) -> tuple[Factors, ma.Array, ma.Array]:
    """Scaled factors, scaled matrices that they whiten, and the scale of what they whiten twice."""
    sizes: Factors = {side: largest_entry(q) for side, q in factors.items()}
    scaled: Factors = {side: q / sizes[side] for side, q in factors.items()}
    largest, most = largest_entry(x), reduce(operator.mul, sizes.values())
    return scaled, _times(scaled, x / largest, product), most * largest * most


def _improved(
    learning_rate: ma.Array, is_balanced: ma.Array, noise: ma.Array, x: ma.Array, factors: Factors
) -> Factors:
    """The factors of matrices after a step."""
    factors = _balanced(factors, is_balanced)
    scaled, a, scale = _whitened(factors, x, rare_product)
    # Only the ratio of A and B matters.
    a, b = a * jnp.minimum(scale, 1), _divided(scaled, noise) * jnp.minimum(1 / scale, 1)
    largest = largest_entry(jnp.maximum(jnp.abs(a), jnp.abs(b)))
    is_zero = jnp.all(x == 0, axis=(-2, -1), keepdims=True)
    rate = jnp.where(is_zero, 0, scalar_like(learning_rate, x))
    a, b = a / largest, b / largest
    return {side: q - rate * _change(q, a, b, side) for side, q in factors.items()}


def _change(q: ma.Array, a: ma.Array, b: ma.Array, side: Side) -> ma.Array:
    """The step of a factor, divided by its learning rate."""
    if _is_diagonal(q):
        axis = -1 if side == "left" else -2
        of_a, of_b = (jnp.sum(ma.abs_sq(x), axis=axis, keepdims=True) for x in (a, b))
        return (of_a - of_b) / _or_one(jnp.max(of_a + of_b, axis=(-2, -1), keepdims=True, initial=0)) * q
    of_a, of_b = (rare_product(x, adjoint(x)) if side == "left" else rare_product(adjoint(x), x) for x in (a, b))
    return rare_product(jnp.triu(of_a - of_b) / _or_one(_norm_bound(of_a + of_b)), q)


def _norm_bound(x: ma.Array) -> ma.Array:
    """A lower bound of the spectral norm of positive semidefinite matrices: a power step from the longest column."""
    largest = largest_entry(x)
    x = x / largest
    longest = jnp.argmax(jnp.sum(ma.abs_sq(x), axis=-2), axis=-1)
    y = product(x, jnp.take_along_axis(x, longest[..., None, None], axis=-1))
    return norm(product(x, y / _or_one(norm(y, -2))), -2) * largest


def _or_one(x: ma.Array) -> ma.Array:
    """A divisor that isn't negative, or one where it is zero."""
    return jnp.where(x > 0, x, 1)


def with_two_axes(params: ma.Params) -> ma.PyTree:
    """A mask of all arrays with at least two axes, which are those that decay in the authors' code."""
    return jtu.tree_map(lambda p: p.ndim > 1, params)


class AbstractDecayByAxes(AbstractWeightDecay):
    """Decoupled weight decay, by default of all arrays with at least two axes.

    Args:
        mask: which parameters decay, as in `AddDecayedWeights`; by default all arrays with at least two axes.
    """

    mask: ma.Mask = ma.mask()

    def decays(self):
        return [ma.AddDecayedWeights(self.weight_decay, with_two_axes if self.mask is None else self.mask)]


class Kron(
    AbstractKron,
    AbstractDecayByAxes,
    AbstractKronFactors,
    AbstractWeightDecay,
    AbstractKronMomentum,
    ma.AbstractRated,
):
    r"""PSGD with Kronecker factors (PSGD Kron): whitens the momentum of each matrix by two triangular factors.

        optimizer = Kron(3e-4, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \hat m_t = m_t / (1 - \beta^t) \\
    x_t &= \hat m_t + \sqrt{\epsilon}\, \overline{|\hat m_t|}\, V_t, \qquad V_{t,ij} \sim \mathcal{N}(0, 1) \\
    A_t &= Q_L x_t Q_R^\top, \qquad B_t = Q_L^{-\top} V_t Q_R^{-1} \\
    Q_L &\leftarrow Q_L - \mu \frac{\operatorname{triu}(A_t A_t^\top - B_t B_t^\top)}
        {\|A_t A_t^\top + B_t B_t^\top\|} Q_L, \qquad
    Q_R \leftarrow Q_R - \mu \frac{\operatorname{triu}(A_t^\top A_t - B_t^\top B_t)}
        {\|A_t^\top A_t + B_t^\top B_t\|} Q_R \\
    u_t &= Q_L^\top Q_L\, x_t\, Q_R^\top Q_R, \qquad
    w_{t+1} = w_t - \eta \bigl(u_t \min(1, 1.1 / \operatorname{RMS}(u_t)) + \lambda w_t\bigr)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, a matrix; see `ScaleByKron` for vectors, long sides and the norm. The factors move
    in every step at first, and later every 33 steps.

    The state has the momentum and two triangular matrices, stored as square ones: for a square matrix, three times its
    size.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        preconditioner_update_probability: the fraction $p$ of the steps in which the factors move, every $1 / p$
            steps; by default, in `Kron`, 1 for 500 steps, then $e^{-(t - 500) / 1000}$, and at least 0.03.
        precond_lr: learning rate $\mu$ of the factors.
        precond_init_scale: the first preconditioner, $Q_L \otimes Q_R$, is this times the identity.
        max_size_triangular: the longest side with a triangular factor; that of a longer one is diagonal.
        min_ndim_triangular: the smallest number of axes of an array with triangular factors: 1 for vectors too.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all arrays with at least two axes.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleBySOAP`.
        diagonal: which sides of a matrix have diagonal factors, whatever their length: `"none"`, `"longer"` for the
            longer one of two sides of different lengths, `"one"` for that or the inputs of a square matrix, or `"all"`.
            The authors' `memory_save_mode` is None, `"smart_one_diag"`, `"one_diag"` or `"all_diag"`.
        momentum_into_precond_update: whether $x_t$ in the lines of the $Q$ is the momentum, as above, and not the
            gradient. In the line of $u_t$, it is $\hat m_t$ then, without noise.
        key: a seed, or a JAX key, for $V$ and the balancing.
        block_size: the longest side of the blocks that matrices are divided into, each with factors and an RMS of its
            own; by default, matrices are whole. A step of a square matrix of width $n$ takes in the order of $n^3$
            operations without blocks, and $n^2 b$ with blocks of width $b$. In the authors' `distributed_kron`, the
            width is 256, and the RMS is that of the whole array.

    References:
        Li, [Preconditioner on Matrix Lie Group for SGD](https://arxiv.org/abs/1809.10232), 2018;
        Li, [Preconditioned Stochastic Gradient Descent](https://arxiv.org/abs/1512.04202), 2015; Walters et al., the
        [code](https://github.com/evanatyourservice/kron_torch) of Kron, 2024.
    """

    direction = ScaleByKron
    learning_rate: ma.Number = ma.number(3e-4)
    preconditioner_update_probability: ma.Number = ma.number(
        ExponentialDecay(1.0, 1, math.exp(-0.001), 500, end_value=0.03), needs=ma.FRACTION
    )
