"""Muon: orthogonalized momentum for matrices, with AdamW for all other parameters.

`ScaleByShape` scales each update for the shape of its matrix.
"""

import dataclasses
import math
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import authoring as ma
from .._protocol.masks import AbstractLabels
from .._protocol.transform import AbstractStatelessTransform, Effect
from .._roles.find import AbstractRoles
from .._support.arithmetic import in_dtype
from .._transforms.matrices import Axes, Matrix, make_axes_hashable, matrices_as, matrices_of, specified_matrices
from .._transforms.spread import axis_names
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients, orthogonalize_parts
from .adam import AdamW
from .beside_adamw import AbstractBesideAdamW, names_that_deny


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


class MuonState(ma.AbstractState):
    """State of `ScaleByMuon`: step count and momentum, which is None for leaves that aren't matrices."""

    optax_fields = ("count", "mu", "ns_coeffs")

    mu: ma.PyTree = ma.like_params(moment=1.0)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractNewtonSchulz(ma.AbstractFields):
    """The hyperparameters of a Newton-Schulz iteration.

    Args:
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
    """

    _: ma.KW_ONLY
    ns_coeffs: Any = ma.numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = ma.static(5, least=0)
    dtype: ma.DTypeLike | None = ma.static(None)
    over: str | tuple[str, ...] | None = ma.static(None, converter=axis_names)


class AbstractOrthogonalized(AbstractNewtonSchulz):
    r"""The hyperparameters of a momentum whose matrices are orthogonalized by a Newton-Schulz iteration.

    Args:
        beta: exponential decay rate $\beta$ of the momentum.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
    """

    beta: ma.Number = ma.number(0.95, needs=ma.DECAY)
    _: ma.KW_ONLY
    preconditioning: str = ma.choice(tuple(PRECONDITIONINGS), "frobenius")
    per_head: bool = ma.static(False)


class AbstractMuonMomentum(AbstractOrthogonalized, ma.AbstractNesterov):
    """The hyperparameters that Muon, NorMuon and AdaMuon share."""

    # `nesterov` is first of those given by name, because `compat` takes all before it by position, as optax does.
    _: ma.KW_ONLY
    nesterov: bool = ma.static(True)


class AbstractOfMatrices(ma.AbstractFields):
    """What directions with a momentum of matrices share.

    Args:
        mu_dtype: dtype of the momentum; by default that of the parameters.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.
    """

    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))


class AbstractMuon(AbstractMuonMomentum):
    r"""The hyperparameters of Muon.

    Args:
        eps: added to the norm that a matrix is divided by before the first iteration; in `Muon`, also AdamW's
            $\varepsilon$.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        follow: `"paper"`; or `"optax"` for its bias correction of $d_t$, for its rule that every parameter with
            two axes is a matrix of shape `(inputs, outputs)`, and in `Muon` for NAdamW with `nesterov`.
    """

    ns_coeffs: Any = ma.numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = ma.static(5, least=0)
    eps: ma.Number = ma.number(1e-8)
    _: ma.KW_ONLY
    adaptive: bool = ma.static(False)
    follow: ma.Follow = ma.followed()


S = TypeVar("S", bound=Any)  # a state with a momentum


class AbstractPolar(AbstractNewtonSchulz, ma.AbstractMatrixwise[S]):
    """A rule with the orthogonal factors of matrices, by a Newton-Schulz iteration."""

    is_split: ClassVar = True

    _: ma.KW_ONLY
    eps: eqx.AbstractVar[Any]
    preconditioning: eqx.AbstractVar[str]

    def _sent(self, x):
        # Bfloat16 has the range of float32, so that nothing is lost before the first division but bits.
        is_narrow = self.dtype is not None and self.dtype == jnp.bfloat16 and x.dtype == jnp.float32
        return in_dtype(x, jnp.bfloat16 if is_narrow else x.dtype)

    def _map_parts(self, x, parts):
        options = {"preconditioning": self.preconditioning, "eps": self.eps, "dtype": self.dtype}
        return orthogonalize_parts(x, parts, self.ns_coeffs, self.ns_steps, **options)


class AbstractScaleByMuon(AbstractMuonMomentum, AbstractPolar[S]):
    """A momentum whose matrices are orthogonalized by a Newton-Schulz iteration: what the kinds of Muon share."""

    is_for_hidden_layers: ClassVar = True

    def direction(self, now: Any, g: ma.Array, mu: ma.Array) -> ma.Array:
        """Return the array to orthogonalize, from a gradient and the new momentum."""
        del now
        return ma.moment(self.beta, mu, g) if self.nesterov else mu

    def filter_leaf(self, now, g, s) -> tuple[Any, S]:
        mu = ma.moment(self.beta, s.mu, g)
        return (self.direction(now, g, mu),), dataclasses.replace(s, mu=mu)


class ScaleByMuon(AbstractOfMatrices, AbstractMuon, AbstractScaleByMuon[MuonState]):
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
        ns_steps: number of iterations with a single triple of coefficients.
        beta: exponential decay rate $\beta$ of the momentum.
        eps: added to the norm that a matrix is divided by before the first iteration; in `Muon`, also AdamW's
            $\varepsilon$.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        follow: `"paper"`; or `"optax"` for its bias correction of $d_t$, for its rule that every parameter with
            two axes is a matrix of shape `(inputs, outputs)`, and in `Muon` for NAdamW with `nesterov`.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.
        sign: whether the signs of the entries of $d_t$ are orthogonalized in place of $d_t$, as in `AdaMuon`.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Bernstein and Newhouse, [Old Optimizer, New Norm: An Anthology](https://arxiv.org/abs/2409.20325), 2024.
    """

    _: ma.KW_ONLY
    sign: bool = ma.static(False)

    def init_matrix(self, x):
        return MuonState(ma.zeros_in(x, self.mu_dtype))

    def prepare(self, count):
        t = count + 1
        return (ma.bias(self.beta, t), ma.bias(self.beta, t + 1)) if self.follow == "optax" else (1, 1)

    def direction(self, now, g, mu):
        bias_now, bias_next = now
        if self.follow == "paper":
            d = super().direction(now, g, mu)
        else:
            d = ma.moment(self.beta, mu / bias_next, g / bias_now) if self.nesterov else mu / bias_now
        return jnp.sign(d) if self.sign else d

    def filter_leaf(self, now, g, s):
        (d,), new = super().filter_leaf(now, g, s)
        return ((d, self.direction(now, g, new.mu)) if self.adaptive else (d,)), new

    def update_matrix(self, now, g, s, p):
        del now, p
        u, *others = g
        return _nuclear_norm(others[0], u) * u if self.adaptive else u, s


def _nuclear_norm(x: ma.Array, orthogonal: ma.Array) -> ma.Array:
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

    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(MuonDimensionNumbers))
    consistent_rms: ma.OptionalNumber = ma.number(None, optional=True)
    clamped: bool = ma.static(True)
    per_head: bool = ma.static(False)
    follow: ma.Follow = ma.followed()

    def apply(self, updates: ma.Updates, params: ma.Params | None, **extra: Any) -> ma.Updates:
        """The updates, each multiplied by the factor of its shape."""
        del params, extra
        specified = specified_matrices(self.weight_dimension_numbers, self.follow)
        matrices = matrices_of("ScaleByShape(weight_dimension_numbers=...)", specified, updates, per_head=self.per_head)
        leaves, treedef = jtu.tree_flatten(updates)
        return treedef.unflatten(
            [g if m is None else self._scaled(g, m) for g, m in zip(leaves, matrices, strict=True)]
        )

    def _scaled(self, g: ma.Array, matrix: Matrix) -> ma.Array:
        wide = g.astype(ma.at_least_float32(g.dtype))
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


class AbstractShaped(ma.AbstractFields):
    r"""Which factor the shape of a matrix gives, as in `ScaleByShape`.

    Args:
        consistent_rms: $\rho$, the root mean square of an update, for the third form of $s$; None for another.
        clamped: True for the first form of $s$, False for the second.
    """

    _: ma.KW_ONLY
    consistent_rms: ma.OptionalNumber = ma.number(None, optional=True)
    clamped: bool = ma.static(True)


class AbstractScaledByShape(AbstractBesideAdamW):
    """`AbstractBesideAdamW`, where `ScaleByShape` multiplies the directions."""

    def directions(self):
        return [*super().directions(), self._part(ScaleByShape, weight_dimension_numbers=self._matrices())]


class Muon(AbstractShaped, AbstractScaledByShape, AbstractMuon, ma.AbstractRated):
    r"""Orthogonalized momentum for the weight matrices of hidden layers, with AdamW for all other parameters.

        optimizer = Muon(2e-2, adam_learning_rate=3e-4, weight_decay=0.01)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    u_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top \\
    s &= \sqrt{\max(1, n / m)} \quad\text{or}\quad s = \sqrt{n / m} \quad\text{or, with }
        \texttt{consistent\_rms},\quad s = \rho \sqrt{\max(m, n)} \\
    w_{t+1} &= w_t - \eta (s\, u_t + \lambda w_t)
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) and $n$ columns (outputs), with $g_t$ the gradient at $w_t$ and $m_0 = 0$.
    $U V^\top$ is approximated by `ns_steps` steps of a Newton-Schulz iteration with the coefficients $a, b, c$, from
    $X_0 = d_t / (\|d_t\|_F + \varepsilon)$, transposed if $d_t$ has more rows than columns:

    $$
    X_{k+1} = a X_k + (b A_k + c A_k^2) X_k, \qquad A_k = X_k X_k^\top
    $$

    With `adaptive`, $u_t$ is multiplied by the nuclear norm, $\langle d_t, u_t \rangle$. AdamW trains all other
    parameters:

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    w_{t+1} &= w_t - \eta_\text{a} \left( \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t) + \bar\varepsilon}
        + \varepsilon} + \lambda_\text{a} w_t \right)
    \end{aligned}
    $$

    where $\eta_\text{a}, \beta_1, \beta_2, \bar\varepsilon, \lambda_\text{a}$ are `adam_learning_rate`, `adam_b1`,
    `adam_b2`, `adam_eps_root` and `adam_weight_decay`, and $\varepsilon$ is `eps`.

    `roles` finds the matrices, and which of their axes are inputs and outputs: the weights of linear layers,
    convolutions and attention in Equinox and Flax. AdamW trains embeddings, the head, biases and the gains of norms.
    `describe(optimizer, model)` shows the result. Pass `roles` for layers that are not recognized:

        Muon(2e-2, roles={"readout": Head(), "blocks.*.qkv": Attention(heads=8)})

    An array with two axes in a tree without layers, such as a dict, is taken as a matrix of shape `(inputs, outputs)`.

    With `nesterov`, optax uses NAdamW in place of AdamW; here only `follow="optax"` does.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        beta: exponential decay rate $\beta$ of the momentum.
        eps: added to the norm that a matrix is divided by before the first iteration; in `Muon`, also AdamW's
            $\varepsilon$.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        follow: `"paper"`; or `"optax"` for its bias correction of $d_t$, for its rule that every parameter with
            two axes is a matrix of shape `(inputs, outputs)`, and in `Muon` for NAdamW with `nesterov`.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        consistent_rms: $\rho$, the root mean square of an update, for the third form of $s$; None for another.
        clamped: True for the first form of $s$, False for the second.
        adam_eps_root: $\bar\varepsilon$, added to AdamW's second moment inside the root.
        muon_weight_dimension_numbers: which parameters are trained by Muon, and which of their axes make a matrix, as
            in `ScaleByMuon`; by default their roles tell. If it is given, `roles` has no effect.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Liu et al., [Muon is Scalable for LLM Training](https://arxiv.org/abs/2502.16982), 2025.
    """

    direction = ScaleByMuon
    _matrices_from = "muon_weight_dimension_numbers"

    _: ma.KW_ONLY
    adam_b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    adam_eps_root: ma.Number = ma.number(0.0)
    muon_weight_dimension_numbers: Any = eqx.field(
        static=True, default=None, converter=matrices_as(MuonDimensionNumbers)
    )

    def _finds_matrices(self) -> bool:
        """Whether nothing but roles says which parameters are matrices."""
        numbers = self.muon_weight_dimension_numbers
        return isinstance(numbers, AbstractRoles) and not numbers.is_given

    def _matrices(self) -> AbstractLabels:
        chosen = self.roles if self._finds_matrices() else self.muon_weight_dimension_numbers
        return specified_matrices(chosen, self.follow)

    def _adamw(self, **options: Any) -> AdamW:
        nesterov = self.nesterov and self.follow == "optax"
        return super()._adamw(eps=self.eps, eps_root=self.adam_eps_root, nesterov=nesterov, **options)

    def _effect(self, tree: ma.Params) -> Effect:
        if self.follow == "optax":
            effect = Effect(warnings=names_that_deny(self, self._matrices(), tree))
        else:
            effect = super()._effect(tree)
        if self.roles.is_given and not self._finds_matrices():
            unread = "`roles` mean nothing beside `muon_weight_dimension_numbers`. Give one of them."
            return effect._replace(warnings=[*effect.warnings, unread])
        return effect
