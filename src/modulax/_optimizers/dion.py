"""The optimizer Dion: orthonormalized updates of low rank, with the feedback of the error."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, OptionalNumber, choice, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import Effect
from .._roles.find import as_roles
from .._support.checks import DECAY
from .._support.keys import key
from .._support.types import Params, State
from .._transforms.dion import BASES, ScaleByDion
from .._transforms.muon import ScaleByShape
from .beside_adamw import beside_adamw, mistakes_beside_adamw


class Dion(AbstractOptimizer):
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
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_eps: AdamW's $\varepsilon$.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for that of the matrices.
        consistent_rms: $\rho$, the root mean square of an update of full rank; None for the first form of $s$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        key: a seed, or a JAX key, for $Q_0$.

    References:
        Ahn et al., [Dion: Distributed Orthonormalized Updates](https://arxiv.org/abs/2504.05295), 2025, and the
        authors' [code](https://github.com/microsoft/dion).
    """

    learning_rate: Hyperparameter = number(0.01)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.01)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    rank: int | None = eqx.field(static=True, default=None, metadata={"least": 1})
    rank_fraction: float = eqx.field(static=True, default=1.0)
    rank_multiple_of: int = eqx.field(static=True, default=1, metadata={"least": 1})
    power_iterations: int = eqx.field(static=True, default=1, metadata={"least": 1})
    basis: str = choice(BASES, "shorter")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_eps: Hyperparameter = number(1e-8)
    adam_weight_decay: Hyperparameter = number(0.01)
    adam_learning_rate: OptionalNumber = number(None, optional=True)
    consistent_rms: OptionalNumber = number(None, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    cautious_weight_decay: bool = eqx.field(static=True, default=False)
    key: Any = key()

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        return mistakes_beside_adamw(self, self.roles, tree)

    def transform(self) -> Partition:
        direction = self._part(ScaleByDion, weight_dimension_numbers=self.roles)
        shape = ScaleByShape(self.roles, self.consistent_rms, clamped=False)
        return beside_adamw(self, self.roles, direction, shape, eps=self.adam_eps)
