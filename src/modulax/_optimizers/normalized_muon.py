"""The optimizers NorMuon and AdaMuon: Muon with a second moment of the orthogonalized matrices."""

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
from .._support.checks import DECAY
from .._support.types import Params, State
from .._transforms.muon import ScaleByShape
from .._transforms.normalized_muon import ScaleByAdaMuon, ScaleByNorMuon
from .._transforms.spread import axis_names
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .beside_adamw import beside_adamw, mistakes_beside_adamw


class NorMuon(AbstractOptimizer):
    r"""Muon with a second moment for each output, so that all outputs of a matrix take steps of similar size.

        optimizer = NorMuon(2e-2, adam_learning_rate=3e-4, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad d_t = U \Sigma V^\top \\
    v_{t,j} &= \beta_2 v_{t-1,j} + (1 - \beta_2) \frac{1}{m} \sum_{i=1}^m |o_{t,ij}|^2 \\
    \hat o_{t,ij} &= \frac{o_{t,ij}}{\sqrt{v_{t,j}} + \bar\varepsilon}, \qquad
        u_t = \frac{\|o_t\|_F}{\|\hat o_t\|_F} \hat o_t \\
    s &= \sqrt{\max(1, n / m)} \quad\text{or}\quad s = \sqrt{n / m} \quad\text{or, with }
        \texttt{consistent\_rms},\quad s = \rho \sqrt{\max(m, n)} \\
    w_{t+1} &= w_t - \eta (s\, u_t + \lambda w_t)
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) and $n$ columns (outputs $j$, the neurons), with $g_t$ the gradient at $w_t$,
    $m_0 = 0$ and $v_0 = 0$. $U V^\top$ is approximated by a Newton-Schulz iteration, as in `Muon`. `roles` finds the
    matrices, and AdamW trains all other parameters.

    The `NorMuon` of the package dion is

        NorMuon(
            0.01, ns_coeffs="polar_express", nesterov=False, moment_eps=1e-8, weight_decay=0.01, clamped=False
        )

    and its momentum is a sum, which has the same direction.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: added to the norm of a matrix before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        nesterov: whether to use Nesterov momentum.
        preconditioning: how a matrix is scaled before the first iteration, as in `linalg.orthogonalize`.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_eps: AdamW's $\varepsilon$.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for that of the matrices.
        consistent_rms: $\rho$, the root mean square of an update, for the third form of $s$; None for another.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        per_head: whether each head of a query, key or value is orthogonalized on its own.
        clamped: True for the first form of $s$, False for the second.
        cautious_weight_decay: whether only entries of matrices decay that $u_t$ moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        dtype: dtype of the matrices within the Newton-Schulz iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Li et al., [NorMuon: Making Muon more efficient and scalable](https://arxiv.org/abs/2510.05491), 2025, and the
        authors' [code](https://github.com/zichongli5/NorMuon).
    """

    learning_rate: Hyperparameter = number(0.02)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    b2: Hyperparameter = number(0.95, needs=DECAY)
    eps: Hyperparameter = number(1e-7)
    moment_eps: Hyperparameter = number(1e-10)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    nesterov: bool = eqx.field(static=True, default=True)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_eps: Hyperparameter = number(1e-10)
    adam_weight_decay: Hyperparameter = number(0.0)
    adam_learning_rate: OptionalNumber = number(3e-4, optional=True)
    consistent_rms: OptionalNumber = number(None, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    per_head: bool = eqx.field(static=True, default=False)
    clamped: bool = eqx.field(static=True, default=True)
    cautious_weight_decay: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        return mistakes_beside_adamw(self, self.roles, tree)

    def transform(self) -> Partition:
        transform = self._part(ScaleByNorMuon, weight_dimension_numbers=self.roles)
        shape = ScaleByShape(self.roles, self.consistent_rms, self.clamped, self.per_head)
        return beside_adamw(self, self.roles, transform, shape, eps=self.adam_eps)


class AdaMuon(AbstractOptimizer):
    r"""Muon on the signs of the momentum, with each update divided by its second moment, as in Adam.

        optimizer = AdaMuon(2e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    d_t &= \beta m_t + (1 - \beta) g_t \quad\text{or, without Nesterov momentum,}\quad d_t = m_t \\
    o_t &= U V^\top \quad\text{where}\quad \operatorname{sign}(d_t) = U \Sigma V^\top \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |o_t|^2 \\
    \hat o_t &= \frac{o_t}{\sqrt{v_t} + \bar\varepsilon}, \qquad
        u_t = \frac{\rho \sqrt{m n}}{\|\hat o_t\|_F + \bar\varepsilon} \hat o_t \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    for a matrix of $m$ rows and $n$ columns, with $g_t$ the gradient at $w_t$, $m_0 = 0$ and $v_0 = 0$. The root mean
    square of an update is $\eta \rho$. $U V^\top$ is approximated by a Newton-Schulz iteration, as in `Muon`. `roles`
    finds the matrices, and AdamW trains all other parameters.

    timm's form has no sign: `AdaMuon(sign=False, b2=0.95, nesterov=False, ns_coeffs="dion")`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        b2: exponential decay rate $\beta_2$ of the second moment; by default $\beta$.
        eps: added to the norm of a matrix before the first iteration.
        moment_eps: $\bar\varepsilon$, added to the root of the second moment and to the norm.
        consistent_rms: $\rho$, the root mean square of $u_t$.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        nesterov: whether to use Nesterov momentum.
        sign: whether the signs of the entries of $d_t$ are orthogonalized, and not $d_t$ itself.
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

    References:
        Si et al., [AdaMuon: Adaptive Muon Optimizer](https://arxiv.org/abs/2507.11005), 2025, and the authors'
        [code](https://github.com/Chongjie-Si/AdaMuon).
    """

    learning_rate: Hyperparameter = number(0.02)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    b2: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-7)
    moment_eps: Hyperparameter = number(1e-8)
    consistent_rms: Hyperparameter = number(0.2)
    weight_decay: Hyperparameter = number(0.01)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    nesterov: bool = eqx.field(static=True, default=True)
    sign: bool = eqx.field(static=True, default=True)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_eps: Hyperparameter = number(1e-8)
    adam_weight_decay: Hyperparameter = number(0.0)
    adam_learning_rate: OptionalNumber = number(3e-4, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    per_head: bool = eqx.field(static=True, default=False)
    cautious_weight_decay: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        return mistakes_beside_adamw(self, self.roles, tree)

    def transform(self) -> Partition:
        transform = self._part(ScaleByAdaMuon, weight_dimension_numbers=self.roles)
        return beside_adamw(self, self.roles, transform, eps=self.adam_eps)
