"""Muon: orthogonalized momentum for matrices.

`ScaleByShape` scales each update for the shape of its matrix. `Muon` in `_optimizers/muon.py` adds weight decay and
learning rate, and trains all other parameters with AdamW.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.fields import Number, OptionalNumber, choice, followed, number, numbers
from .._protocol.transform import AbstractStatelessTransform
from .._support.arithmetic import at_least_float32, bias, in_dtype, moment, zeros_in
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Follow, Params, Shared, Updates
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients, orthogonalize_parts
from ..tree._math import widened
from .blocks import map_whole
from .matrices import Axes, Matrix, make_axes_hashable, matrices_as, matrices_of, specified_matrices
from .matrixwise import AbstractMatrixwise
from .spread import axis_names, on_auto_axes


@dataclasses.dataclass(frozen=True)
class MuonDimensionNumbers:
    """Which axes of an array are the rows of a matrix, and which are its columns. All other axes are batch axes.

    In a linear layer $y = x W$, rows are inputs and columns are outputs. For a convolution kernel with axes for height,
    width, input and output, use `MuonDimensionNumbers((0, 1, 2), 3)`.

    Args:
        reduction_axis: axis or axes of the rows.
        output_axis: axis or axes of the columns.
    """

    reduction_axis: Axes = 0
    output_axis: Axes = 1

    __post_init__ = make_axes_hashable


class MuonState(AbstractState):
    """State of `ScaleByMuon`: step count and momentum, which is None for leaves that aren't matrices."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "ns_coeffs")

    mu: PyTree = like_params(moment=1.0)
    count: Shared[Count] = counter()


S = TypeVar("S", bound=Any)  # a state with a momentum


class AbstractMuon(AbstractMatrixwise[S]):
    """A momentum whose matrices are orthogonalized by a Newton-Schulz iteration: what the kinds of Muon share."""

    is_split: ClassVar = True
    is_for_hidden_layers: ClassVar = True

    ns_coeffs: eqx.AbstractVar[Any]
    ns_steps: eqx.AbstractVar[int]
    beta: eqx.AbstractVar[Any]
    eps: eqx.AbstractVar[Any]
    nesterov: eqx.AbstractVar[bool]
    preconditioning: eqx.AbstractVar[str]
    dtype: eqx.AbstractVar[DTypeLike | None]

    def direction(self, now: Any, g: Array, mu: Array) -> Array:
        """Return the array to orthogonalize, from a gradient and the new momentum."""
        del now
        return moment(self.beta, mu, g) if self.nesterov else mu

    def filter_leaf(self, now, g, s) -> tuple[Any, S]:
        mu = moment(self.beta, s.mu, g)
        return (self.sent(self.direction(now, g, mu)),), dataclasses.replace(s, mu=mu)

    def sent(self, d: Array) -> Array:
        """Return an array in the dtype in which devices exchange it."""
        # Bfloat16 has the range of float32, so that nothing is lost before the first division but bits.
        is_narrow = self.dtype is not None and self.dtype == jnp.bfloat16 and d.dtype == jnp.float32
        return in_dtype(d, jnp.bfloat16 if is_narrow else d.dtype)

    def _map_parts(self, x, parts):
        options = {"preconditioning": self.preconditioning, "eps": self.eps, "dtype": self.dtype}
        return orthogonalize_parts(x, parts, self.ns_coeffs, self.ns_steps, **options)


def polar_factors(rule: AbstractMuon, matrices: Sequence[Matrix], momenta: list[Array]) -> list[Array]:
    """Return the orthogonal factors of arrays, which are matrices in these ways, in at least float32."""
    layouts = [rule._layout(matrix, None) for matrix in matrices]

    def factors(now: Any, xs: list[Array]) -> list[Array]:
        return widened(map_whole(now._map_parts, layouts, list(map(now.sent, xs)), now.over, "ScaleByMuon(over=...)"))

    return on_auto_axes(factors, rule, momenta)


class ScaleByMuon(AbstractMuon[MuonState]):
    r"""Orthogonalizes the momentum of every matrix by a Newton-Schulz iteration: the direction of Muon.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    u_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top
    \end{aligned}
    $$

    The last line is approximated by `linalg.orthogonalize`: singular values of $u_t$ are near 1, not equal to it. With
    `adaptive` the update is $\langle d_t, u_t \rangle u_t$, which multiplies it by the nuclear norm of $d_t$. Matrices
    of one shape or of its transpose are orthogonalized as one batch. Leaves that aren't matrices pass through
    unchanged; `Muon` trains them with AdamW.

    optax corrects the bias of the two terms in $d_t$ by different factors, and so does `follow="optax"`:
    $d_t = \beta m_t / (1 - \beta^{t+1}) + (1 - \beta) g_t / (1 - \beta^t)$.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple.
        beta: exponential decay rate $\beta$ of the momentum.
        eps: added to the norm that a matrix is divided by before the first iteration.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        sign: whether the signs of the entries of $d_t$ are orthogonalized in place of $d_t$, as in `AdaMuon`.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        follow: `"paper"` for the momentum without bias correction, `"optax"` with it, and for its rule that every
            parameter with two axes is a matrix.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Bernstein and Newhouse, [Old Optimizer, New Norm: An Anthology](https://arxiv.org/abs/2409.20325), 2024.
    """

    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    beta: Number = number(0.95, needs=DECAY)
    eps: Number = number(1e-8)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: dataclasses.KW_ONLY
    nesterov: bool = eqx.field(static=True, default=True)
    adaptive: bool = eqx.field(static=True, default=False)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    per_head: bool = eqx.field(static=True, default=False)
    sign: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)
    follow: Follow = followed()

    def init_matrix(self, x):
        return MuonState(zeros_in(x, self.mu_dtype))

    def prepare(self, count):
        t = count + 1
        return (bias(self.beta, t), bias(self.beta, t + 1)) if self.follow == "optax" else (1, 1)

    def direction(self, now, g, mu):
        bias_now, bias_next = now
        if self.follow == "paper":
            d = super().direction(now, g, mu)
        else:
            d = moment(self.beta, mu / bias_next, g / bias_now) if self.nesterov else mu / bias_now
        return jnp.sign(d) if self.sign else d

    def filter_leaf(self, now, g, s):
        (d,), new = super().filter_leaf(now, g, s)
        return ((d, self.direction(now, g, new.mu)) if self.adaptive else (d,)), new

    def update_matrix(self, now, g, s, p):
        del now, p
        u, *others = g
        return _nuclear_norm(others[0], u) * u if self.adaptive else u, s


def _nuclear_norm(x: Array, orthogonal: Array) -> Array:
    """The sum of the singular values of `x`, given its orthogonal factor."""
    # The inner product with the orthogonal factor is this sum, so that no singular value is computed.
    return jnp.sum((x.conj() * orthogonal).real, axis=(-2, -1), keepdims=True).astype(x.dtype)


class ScaleByShape(AbstractStatelessTransform):
    r"""Scales the update of each matrix by a factor of its shape, so that one learning rate suits all layer widths.

    $$
    u = g \sqrt{\max(1, n / m)} \quad\text{or}\quad u = g \sqrt{n / m} \quad\text{or}\quad u = \rho g \sqrt{\max(m, n)}
    $$

    for $m$ rows (inputs) and $n$ columns (outputs). Applied to an orthogonal matrix, the third form gives entries with
    a root mean square of $\rho$. With $\rho = 0.2$, about that of Adam's updates, learning rates of Adam can be reused.

    Args:
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByMuon`; others pass through unchanged.
        consistent_rms: $\rho$, the root mean square of an update; None for one of the other forms.
        clamped: True for the first form, False for the second.
        per_head: whether each head of a query, key or value is a matrix, as in `ScaleByMuon`.
        follow: `"paper"`; or `"optax"` for its rule that every parameter with two axes is a matrix.

    References:
        Jordan, [Muon](https://github.com/KellerJordan/Muon), 2024;
        Liu et al., [Muon is Scalable for LLM Training](https://arxiv.org/abs/2502.16982), 2025.
    """

    weight_dimension_numbers: Any = eqx.field(static=True, default=None, converter=matrices_as(MuonDimensionNumbers))
    consistent_rms: OptionalNumber = number(None, optional=True)
    clamped: bool = eqx.field(static=True, default=True)
    per_head: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def apply(self, updates: Updates, params: Params | None, **extra: Any) -> Updates:
        """The updates, each multiplied by the factor of its shape."""
        del params, extra
        specified = specified_matrices(self.weight_dimension_numbers, self.follow)
        matrices = matrices_of("ScaleByShape(weight_dimension_numbers=...)", specified, updates, per_head=self.per_head)
        leaves, treedef = jtu.tree_flatten(updates)
        return treedef.unflatten(
            [g if m is None else self._scaled(g, m) for g, m in zip(leaves, matrices, strict=True)]
        )

    def _scaled(self, g: Array, matrix: Matrix) -> Array:
        wide = g.astype(at_least_float32(g.dtype))
        rows, columns = matrix.size
        factor: Any = self._factor(rows, columns)
        if matrix.blocks:
            factors = [self._factor(rows, size) for size in matrix.blocks]
            factor = matrix.along_columns(np.repeat(factors, matrix.blocks)).astype(wide.dtype)
        if self.consistent_rms is not None:
            factor = jnp.asarray(self.consistent_rms).astype(wide.dtype) * factor
        return (factor * wide).astype(g.dtype)

    def _factor(self, rows: int, columns: int) -> float:
        """The factor of a matrix, without `consistent_rms`."""
        if self.consistent_rms is not None:
            return math.sqrt(max(rows, columns))
        return math.sqrt(max(1, columns / rows) if self.clamped else columns / rows)
