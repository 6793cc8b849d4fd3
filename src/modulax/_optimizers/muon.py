"""The optimizer Muon: orthogonalized momentum for matrices, AdamW for all other parameters."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, OptionalNumber, choice, followed, number, numbers, required_number
from .._protocol.masks import AbstractLabels, as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import Effect
from .._roles.find import AbstractRoles, as_roles
from .._support.checks import DECAY
from .._support.types import Follow, Params, State
from .._transforms.matrices import matrices_as, specified_matrices
from .._transforms.muon import MuonDimensionNumbers, ScaleByMuon, ScaleByShape
from .._transforms.spread import axis_names
from ..linalg._newton_schulz import PRECONDITIONINGS, as_coefficients
from .beside_adamw import beside_adamw, mistakes_beside_adamw, names_that_deny


class Muon(AbstractOptimizer):
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

    `roles` finds the matrices, and which of their axes are inputs and outputs: the weights of linear layers,
    convolutions and attention in Equinox and Flax. AdamW trains embeddings, the head, biases and the gains of norms.
    `describe(optimizer, model)` shows the result. Pass `roles` for layers that are not recognized:

        Muon(2e-2, roles={"readout": Head(), "blocks.*.qkv": Attention(heads=8)})

    An array with two axes in a tree without layers, such as a dict, is taken as a matrix of shape `(inputs, outputs)`.

    With `nesterov`, optax uses NAdamW in place of AdamW; here only `follow="optax"` does.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        ns_coeffs: coefficients $a, b, c$ of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        beta: exponential decay rate $\beta$ of the momentum.
        eps: added to the norm of a matrix before the first iteration, and AdamW's $\varepsilon$.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum.
        adaptive: whether to multiply by the nuclear norm of the momentum.
        preconditioning: how a matrix is scaled before the first iteration, as in `linalg.orthogonalize`.
        adam_b1: exponential decay rate $\beta_1$ of AdamW's first moment.
        adam_b2: exponential decay rate $\beta_2$ of AdamW's second moment.
        adam_eps_root: $\bar\varepsilon$, added to AdamW's second moment inside the root.
        adam_weight_decay: weight decay coefficient $\lambda_\text{a}$ of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate $\eta_\text{a}$ of AdamW, a number or a schedule; None for that of Muon.
        muon_weight_dimension_numbers: which parameters are trained by Muon, and which of their axes make a matrix, as
            in `ScaleByMuon`; by default their roles tell.
        consistent_rms: $\rho$, the root mean square of an update, for the third form of $s$; None for another.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Without effect if `muon_weight_dimension_numbers` is given.
        per_head: whether each head of a query, key or value is orthogonalized on its own.
        clamped: True for the first form of $s$, False for the second.
        cautious_weight_decay: whether only entries of matrices decay that $u_t$ moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        dtype: dtype of the matrices within the Newton-Schulz iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.
        follow: `"paper"`; or `"optax"` for its bias correction of $d_t$, for NAdamW with `nesterov`, and for its rule
            that every parameter with two axes is a matrix of shape `(inputs, outputs)`.

    References:
        Jordan et al., [Muon: An optimizer for hidden layers in neural
        networks](https://kellerjordan.github.io/posts/muon/), 2024;
        Liu et al., [Muon is Scalable for LLM Training](https://arxiv.org/abs/2502.16982), 2025.
    """

    learning_rate: Hyperparameter = required_number()
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    beta: Hyperparameter = number(0.95, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    nesterov: bool = eqx.field(static=True, default=True)
    adaptive: bool = eqx.field(static=True, default=False)
    preconditioning: str = choice(tuple(PRECONDITIONINGS), "frobenius")
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.999, needs=DECAY)
    adam_eps_root: Hyperparameter = number(0.0)
    adam_weight_decay: Hyperparameter = number(0.0)
    adam_learning_rate: OptionalNumber = number(None, optional=True)
    muon_weight_dimension_numbers: Any = eqx.field(
        static=True, default=None, converter=matrices_as(MuonDimensionNumbers)
    )
    consistent_rms: OptionalNumber = number(None, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    per_head: bool = eqx.field(static=True, default=False)
    clamped: bool = eqx.field(static=True, default=True)
    cautious_weight_decay: bool = eqx.field(static=True, default=False)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)
    follow: Follow = followed()

    def _finds_matrices(self) -> bool:
        """Whether nothing but roles says which parameters are matrices."""
        numbers = self.muon_weight_dimension_numbers
        return isinstance(numbers, AbstractRoles) and not numbers.is_given

    def _matrices(self) -> AbstractLabels:
        chosen = self.roles if self._finds_matrices() else self.muon_weight_dimension_numbers
        return specified_matrices(chosen, self.follow)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        matrices = self._matrices()
        if self.follow == "optax":
            effect = Effect(warnings=names_that_deny(self, matrices, tree))
        else:
            effect = mistakes_beside_adamw(self, matrices, tree)
        if self.roles.is_given and not self._finds_matrices():
            unread = "`roles` mean nothing beside `muon_weight_dimension_numbers`. Give one of them."
            return effect._replace(warnings=[*effect.warnings, unread])
        return effect

    def transform(self) -> Partition:
        matrices = self._matrices()
        muon = self._part(ScaleByMuon, weight_dimension_numbers=matrices)
        return beside_adamw(
            self,
            matrices,
            muon,
            ScaleByShape(matrices, self.consistent_rms, self.clamped, self.per_head, follow=self.follow),
            argument="muon_weight_dimension_numbers",
            eps=self.eps,
            eps_root=self.adam_eps_root,
            nesterov=self.nesterov and self.follow == "optax",
        )
