"""The optimizer MARS-M: Muon with variance reduction."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, OptionalNumber, choice, number, numbers
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import Effect
from .._roles.find import as_roles
from .._support.checks import DECAY, NON_NEGATIVE
from .._support.types import Params, State
from .._transforms.muon import ScaleByMuon, ScaleByShape
from .._transforms.spread import axis_names
from .._transforms.variance_reduction import ReduceVariance
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .beside_adamw import beside_adamw, mistakes_beside_adamw


class MARSM(AbstractOptimizer):
    r"""MARS-M: Muon on variance-reduced gradients, with updates of the size of Adam's.

        optimizer = MARSM(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    c_t &= g_t + \gamma \frac{\beta}{1 - \beta} (g_t - g_{t-1}), \qquad
        \tilde c_t = c_t \min(1, \Delta / \|c_t\|_F) \\
    m_t &= \beta m_{t-1} + (1 - \beta) \tilde c_t \\
    u_t &= U V^\top \quad\text{where}\quad m_t = U \Sigma V^\top \\
    w_{t+1} &= w_t - \eta \left( \rho \sqrt{\max(m, n)}\, u_t + \lambda w_t \right)
    \end{aligned}
    $$

    for a matrix of $m$ rows and $n$ columns, with $g_t$ the gradient at $w_t$, $g_0 = 0$ and $m_0 = 0$. By default,
    $g_{t-1}$ is the gradient of the last batch at the last parameters. With `exact=True`, it is the gradient of this
    batch at the last parameters, an argument of `update`: `previous_grad`. $U V^\top$ is approximated by a
    Newton-Schulz iteration, as in `Muon`. As in `Muon`, `roles` finds the matrices, and AdamW trains all other
    parameters.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        eps: added to the norm of a matrix before the first iteration.
        consistent_rms: $\rho$, the root mean square of an update.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        preconditioning: how a matrix is scaled before the first iteration, as in `linalg.orthogonalize`.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_eps: AdamW's $\varepsilon$.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for that of the matrices.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        per_head: whether each head of a query, key or value is orthogonalized on its own.
        cautious_weight_decay: whether only entries of matrices decay that $u_t$ moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        dtype: dtype of the matrices within the Newton-Schulz iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.

    References:
        Liu et al., [MARS-M: When Variance Reduction Meets Matrices](https://arxiv.org/abs/2510.21800), 2025, and the
        authors' [code](https://github.com/AGI-Arena/MARS).
    """

    learning_rate: Hyperparameter = number(1e-3)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    gamma: Hyperparameter = number(0.025)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)
    eps: Hyperparameter = number(1e-7)
    consistent_rms: Hyperparameter = number(0.2)
    weight_decay: Hyperparameter = number(0.1)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_eps: Hyperparameter = number(1e-8)
    adam_weight_decay: Hyperparameter = number(0.1)
    adam_learning_rate: OptionalNumber = number(None, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    per_head: bool = eqx.field(static=True, default=False)
    cautious_weight_decay: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)
    exact: bool = eqx.field(static=True, default=False)

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("previous_grad",) if self.exact else ()

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        return mistakes_beside_adamw(self, self.roles, tree)

    def transform(self) -> Partition:
        muon = self._part(ScaleByMuon, nesterov=False, weight_dimension_numbers=self.roles)
        shape = ScaleByShape(self.roles, self.consistent_rms, per_head=self.per_head)
        correction = ReduceVariance(self.gamma, self.beta, self.max_norm, exact=self.exact)
        return beside_adamw(self, self.roles, correction, muon, shape, eps=self.adam_eps)
