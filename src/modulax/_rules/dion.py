"""Dion: an orthonormal matrix of low rank, by one power step on a momentum that keeps the rest."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._support.arithmetic import in_dtype
from .._support.keys import key, next_keys
from .._transforms.outer_products import norm
from ..linalg._eigenbasis import largest_entry, orthonormalized
from ..linalg._products import adjoint, product
from .beside_adamw import AbstractBesideOwnAdamW
from .muon import AbstractOfMatrices, AbstractScaledByShape

BASES = ("shorter", "inputs")


def _weight(rule: Any) -> Any:
    """What makes the momentum an average of the gradients: of full rank, it is their sum by powers of β from β on."""
    is_full = rule.rank is None and rule.rank_fraction == 1
    # What directions of a lower rank leave out does not decay. With β = 0, the momentum is zero.
    return ma.ratio(1 - rule.beta, rule.beta) if is_full else 0


class DionState(ma.AbstractState):
    """State of `ScaleByDion`: the momentum, a basis of its row or column space, and the step count.

    Both are None for leaves that aren't matrices. The columns of `basis` have about unit length. Where several matrices
    are joined in one array, it has an axis for those of equal size, or is a tuple of such bases.
    """

    mu: ma.PyTree = ma.like_params(moment=_weight)
    basis: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    count: ma.Shared[ma.Count] = ma.shared(None)


class AbstractDion(ma.AbstractFields):
    r"""The hyperparameters of Dion.

    Args:
        beta: decay rate $\beta$ of the part of the momentum that the update has.
        eps: $\varepsilon$, added to the norms of the columns of $R$.
        rank: the rank $r$, at most the length of the shorter side; None for a fraction of it.
        rank_fraction: this fraction of the shorter side, rounded up.
        rank_multiple_of: a number of which this rank is made a multiple, also rounded up.
        power_iterations: number of times that $P$ and $R$ are computed, each time with the last $R$ in place of $Q$.
        basis: the side of the matrix that $Q$ belongs to, `"shorter"` or `"inputs"`.
        key: a seed, or a JAX key, for $Q_0$.
    """

    beta: ma.Number = ma.number(0.95, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    _: ma.KW_ONLY
    rank: int | None = ma.static(None, least=1)
    rank_fraction: float = ma.static(1.0)
    rank_multiple_of: int = ma.static(1, least=1)
    power_iterations: int = ma.static(1, least=1)
    basis: str = ma.choice(BASES, "shorter")
    key: Any = key()


class ScaleByDion(AbstractOfMatrices, AbstractDion, ma.AbstractMatrixwise[DionState]):
    r"""Approximates the orthogonal factor of the momentum of every matrix by one of low rank: the direction of Dion.

    $$
    \begin{aligned}
    B_t &= M_{t-1} + g_t \\
    P_t &= \operatorname{qr}(B_t Q_{t-1}), \qquad R_t = B_t^\top P_t \\
    M_t &= B_t - (1 - \beta) P_t R_t^\top \\
    Q_{t,j} &= R_{t,j} / (\|R_{t,j}\| + \varepsilon), \qquad u_t = P_t Q_t^\top
    \end{aligned}
    $$

    where $\operatorname{qr}$ is the orthonormal factor of the QR decomposition, $Q$ has $r$ columns $j$, and
    $M_0 = 0$. The entries of $Q_0$ are standard normal. The part of the momentum outside the $r$ directions stays in
    it: this is error feedback. While a momentum is zero, the update is zero, and $Q$ does not change. Leaves that
    aren't matrices pass through unchanged. Query, key and value in one array are three matrices.

    Args:
        beta: decay rate $\beta$ of the part of the momentum that the update has.
        eps: $\varepsilon$, added to the norms of the columns of $R$.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        rank: the rank $r$, at most the length of the shorter side; None for a fraction of it.
        rank_fraction: this fraction of the shorter side, rounded up.
        rank_multiple_of: a number of which this rank is made a multiple, also rounded up.
        power_iterations: number of times that $P$ and $R$ are computed, each time with the last $R$ in place of $Q$.
        basis: the side of the matrix that $Q$ belongs to, `"shorter"` or `"inputs"`.
        key: a seed, or a JAX key, for $Q_0$.
        weight_dimension_numbers: which parameters are matrices: a `MuonDimensionNumbers` for all with at least two
            axes; a tree of them, with None for the others, or a function of the parameters that returns one; or
            `by_path({...})`; or the result of `roles`. By default the roles of the parameters tell: the matrices of
            hidden layers, of convolutions and of attention.

    References:
        Ahn et al., [Dion: Distributed Orthonormalized Updates](https://arxiv.org/abs/2504.05295), 2025, and the
        authors' [code](https://github.com/microsoft/dion).
    """

    is_joined: ClassVar = True
    is_split: ClassVar = True
    is_for_hidden_layers: ClassVar = True

    def check(self) -> None:
        if not 0 < self.rank_fraction <= 1:
            raise ValueError(f"`rank_fraction` must be in (0, 1], got {self.rank_fraction!r}.")

    def is_transposed(self, rows, columns):
        """Whether the basis belongs to the rows, which are inputs; the rule has it on the side of the columns."""
        return self.basis == "inputs" or rows <= columns

    def init(self, params):
        """Return momenta of zeros, and random bases."""
        state = super().init(params)
        treedef = jtu.tree_structure(params)
        _, keys = next_keys(jnp.asarray(self.key), treedef.num_leaves)

        def drawn(k, basis):
            bases = jtu.tree_leaves(basis)  # of the matrices that are joined in an array
            every = [k] if len(bases) == 1 else jax.random.split(k, max(len(bases), 1))
            return [jax.random.normal(each, x.shape, x.dtype) for each, x in zip(every, bases, strict=False)]

        found = [x for k, basis in zip(keys, treedef.flatten_up_to(state.basis), strict=True) for x in drawn(k, basis)]
        return eqx.tree_at(lambda s: jtu.tree_leaves(s.basis), state, found)

    def init_matrix(self, x):
        *batch, rows, columns = x.shape
        unit, most = self.rank_multiple_of, min(rows, columns)
        rank = min(self.rank or unit * math.ceil(self.rank_fraction * most / unit), most)
        return DionState(
            ma.zeros_in(x, self.mu_dtype), jnp.zeros((*batch, columns, rank), ma.at_least_float32(x.dtype))
        )

    def update_matrix(self, now, g, s, p):
        del now
        x = g + s.mu
        largest = largest_entry(x)
        b = x / largest  # no square of it overflows or underflows
        p, r = x, in_dtype(s.basis, x.dtype)
        for _ in range(self.power_iterations):
            y = product(b, r)
            p = orthonormalized(y / largest_entry(y))
            r = product(adjoint(b), p)
        norms = norm(r, -2)
        q = r * ma.ratio(jnp.ones_like(norms), norms + self.eps / largest)
        is_zero = jnp.all(x == 0, axis=(-2, -1), keepdims=True)
        u = jnp.where(is_zero, 0, product(p, adjoint(q)))
        mu = x - (1 - self.beta) * largest * product(p, adjoint(r))
        return u, DionState(mu, jnp.where(is_zero, s.basis, q))


class Dion(AbstractScaledByShape, AbstractBesideOwnAdamW, AbstractDion, ma.AbstractRated):
    r"""Muon-like updates of low rank, by one power step on a momentum that keeps what they leave out.

        optimizer = Dion(1e-2, rank_fraction=0.25, adam_learning_rate=1e-3)

    $$
    \begin{aligned}
    B_t &= M_{t-1} + g_t \\
    P_t &= \operatorname{qr}(B_t Q_{t-1}), \qquad R_t = B_t^\top P_t \\
    M_t &= B_t - (1 - \beta) P_t R_t^\top \\
    Q_{t,j} &= R_{t,j} / (\|R_{t,j}\| + \varepsilon) \\
    w_{t+1} &= w_t - \eta (s\, P_t Q_t^\top + \lambda w_t), \qquad s = \sqrt{n / m}
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) and $n$ columns (outputs), with $g_t$ the gradient at $w_t$ and $M_0 = 0$. $Q$ has
    $r$ columns $j$; at first its entries are standard normal. With `consistent_rms`, $s = \rho \sqrt{\max(m, n)}$.
    As in `Muon`, `roles` finds the matrices, and AdamW trains all other parameters.

    `Dion` here is the `DionReference` of the authors, with an exact QR decomposition. Their `DionSimple` is
    `Dion(basis="inputs", rank=768)`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: decay rate $\beta$ of the part of the momentum that the update has.
        eps: $\varepsilon$, added to the norms of the columns of $R$.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        rank: the rank $r$, at most the length of the shorter side; None for a fraction of it.
        rank_fraction: this fraction of the shorter side, rounded up.
        rank_multiple_of: a number of which this rank is made a multiple, also rounded up.
        power_iterations: number of times that $P$ and $R$ are computed, each time with the last $R$ in place of $Q$.
        basis: the side of the matrix that $Q$ belongs to, `"shorter"` or `"inputs"`.
        key: a seed, or a JAX key, for $Q_0$.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        adam_eps: AdamW's $\varepsilon$.
        consistent_rms: $\rho$, the root mean square of an update of full rank; None for the first form of $s$.

    References:
        Ahn et al., [Dion: Distributed Orthonormalized Updates](https://arxiv.org/abs/2504.05295), 2025, and the
        authors' [code](https://github.com/microsoft/dion).
    """

    direction = ScaleByDion
    clamped: ClassVar[bool] = False
    learning_rate: ma.Number = ma.number(0.01)
    weight_decay: ma.Number = ma.number(0.01)
    _: ma.KW_ONLY
    adam_weight_decay: ma.Number = ma.number(0.01)
    consistent_rms: ma.OptionalNumber = ma.number(None, optional=True)
