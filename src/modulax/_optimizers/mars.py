"""The optimizers MARS, MARSLion and MARSShampoo: AdamW, Lion and Muon of gradients with reduced variance."""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import DTypeLike, PyTree

from .._containers.chain import Chain
from .._containers.partition import Partition
from .._protocol.fields import Hyperparameter, OptionalNumber, number, numbers
from .._protocol.masks import AbstractLabels, as_labels, mask_of
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform, Effect
from .._roles.find import as_roles
from .._support.checks import DECAY, NON_NEGATIVE
from .._support.types import Params, State
from .._transforms.adam import ScaleByAdam
from .._transforms.amsgrad import ScaleByAMSGrad
from .._transforms.lion import ScaleByLion
from .._transforms.matrices import MatrixLabels
from .._transforms.muon import ScaleByMuon, ScaleByShape
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.spread import axis_names
from .._transforms.variance_reduction import ReduceVariance
from ..linalg._newton_schulz import as_coefficients
from .beside_adamw import mistakes_beside_adamw, names_that_deny


@dataclasses.dataclass(frozen=True)
class _Labels(AbstractLabels):
    """`"mars"` for the parameters of a mask, by default those with at least two axes, and `"adam"` for others."""

    owner: str
    where: AbstractLabels | None

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        is_matrix = [x.ndim > 1 for x in jtu.tree_leaves(tree)]
        mask = is_matrix if self.where is None else mask_of(self.owner, self.where, tree, "where")
        return ["mars" if x else "adam" for x in mask]

    def refuse_unused(self, owner: object, tree: PyTree) -> None:
        if self.where is not None:
            self.where.refuse_unused(owner, tree)


class AbstractMARS(AbstractOptimizer):
    """MARS with any direction: the base class of its forms."""

    learning_rate: eqx.AbstractVar[Hyperparameter]
    gamma: eqx.AbstractVar[Hyperparameter]
    max_norm: eqx.AbstractVar[OptionalNumber]
    weight_decay: eqx.AbstractVar[Hyperparameter]
    mask: eqx.AbstractVar[Any]
    exact: eqx.AbstractVar[bool]
    where: eqx.AbstractVar[Any]
    adam_learning_rate: eqx.AbstractVar[OptionalNumber]
    adam_weight_decay: eqx.AbstractVar[Hyperparameter]

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("previous_grad",) if self.exact else ()

    @abc.abstractmethod
    def directions(self) -> tuple[Any, AbstractTransform, AbstractTransform]:
        """Return the decay rate of the momentum, the direction of the matrices, and that of other parameters."""

    def labels(self) -> AbstractLabels:
        """Return which parameters are trained by `"mars"`, and which by `"adam"`."""
        return _Labels(type(self).__name__, self.where)

    def transform(self) -> Partition:
        beta, direction, of_others = self.directions()
        mars = Chain(
            ReduceVariance(self.gamma, beta, self.max_norm, exact=self.exact),
            direction,
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
        rate = self.learning_rate if self.adam_learning_rate is None else self.adam_learning_rate
        adam = Chain(of_others, AddDecayedWeights(self.adam_weight_decay), ScaleByLearningRate(rate))
        return Partition({"mars": mars, "adam": adam}, self.labels())


class MARS(AbstractMARS):
    r"""AdamW on variance-reduced gradients: each is corrected by its difference from the previous one.

        optimizer = MARS(3e-3, weight_decay=0.01)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    c_t &= g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g'_t), \qquad
        \tilde c_t = c_t \min(1, \Delta / \|c_t\|_F) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \tilde c_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |\tilde c_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, $m_0 = v_0 = 0$ and $g'_1 = 0$; the norm is that of each array.
    By default, $g'_t = g_{t-1}$ is the gradient of the last batch at $w_{t-1}$. With `exact=True`, it is the gradient
    of the current batch at $w_{t-1}$, a second gradient for each step:

        previous = jax.grad(loss)(last_params, batch)
        grads = jax.grad(loss)(params, batch)
        last_params, (params, state) = params, optimizer.step(grads, state, params, previous_grad=previous)

    As in the authors' code, AdamW trains vectors and scalars, with its own decay rates.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root, also in AdamW.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the first moments; by default that of the parameters.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        amsgrad: whether to divide by the root of the largest second moment so far, as in `AMSGrad`.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes;
            `where=True` for all.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    learning_rate: Hyperparameter = number(3e-3)
    b1: Hyperparameter = number(0.95, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: dataclasses.KW_ONLY
    gamma: Hyperparameter = number(0.025)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    exact: bool = eqx.field(static=True, default=False)
    amsgrad: bool = eqx.field(static=True, default=False)
    where: Any = eqx.field(static=True, default=None, converter=as_labels)
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_weight_decay: Hyperparameter = number(0.1)
    adam_learning_rate: OptionalNumber = number(None, optional=True)

    def directions(self) -> tuple[Any, AbstractTransform, AbstractTransform]:
        scale = ScaleByAMSGrad if self.amsgrad else ScaleByAdam
        rates = ((self.b1, self.b2), (self.adam_b1, self.adam_b2))
        mars, adam = (scale(b1, b2, self.eps, mu_dtype=self.mu_dtype) for b1, b2 in rates)
        return self.b1, mars, adam


class MARSLion(AbstractMARS):
    r"""Form of MARS that is like Lion: steps by the sign of a momentum of variance-reduced gradients.

        optimizer = MARSLion(3e-4, weight_decay=0.1, adam_learning_rate=3e-3)

    $$
    \begin{aligned}
    c_t &= g_t + \gamma \frac{\beta}{1 - \beta} (g_t - g'_t), \qquad
        \tilde c_t = c_t \min(1, \Delta / \|c_t\|_F) \\
    m_t &= \beta m_{t-1} + (1 - \beta) \tilde c_t \\
    w_{t+1} &= w_t - \eta (\operatorname{sign}(m_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $m_0 = 0$ and $g'_1 = 0$. $g'_t$ and the parameters that AdamW trains are those of
    `MARS`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes;
            `where=True` for all.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_eps: AdamW's $\varepsilon$.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    learning_rate: Hyperparameter = number(3e-3)
    beta: Hyperparameter = number(0.95, needs=DECAY)
    _: dataclasses.KW_ONLY
    gamma: Hyperparameter = number(0.025)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    exact: bool = eqx.field(static=True, default=False)
    where: Any = eqx.field(static=True, default=None, converter=as_labels)
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_eps: Hyperparameter = number(1e-8)
    adam_weight_decay: Hyperparameter = number(0.1)
    adam_learning_rate: OptionalNumber = number(None, optional=True)

    def directions(self) -> tuple[Any, AbstractTransform, AbstractTransform]:
        adam = ScaleByAdam(self.adam_b1, self.adam_b2, self.adam_eps, mu_dtype=self.mu_dtype)
        return self.beta, ScaleByLion(self.beta, self.beta, self.mu_dtype), adam


class MARSShampoo(AbstractMARS):
    r"""Form of MARS that is like Shampoo: an orthogonalized momentum of variance-reduced gradients.

        optimizer = MARSShampoo(1e-3, adam_learning_rate=1e-3)

    $$
    \begin{aligned}
    c_t &= g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g'_t), \qquad
        \tilde c_t = c_t \min(1, \Delta / \|c_t\|_F) \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \tilde c_t \\
    u_t &= U V^\top \quad\text{where}\quad m_t = U \Sigma V^\top \\
    w_{t+1} &= w_t - \eta \left( \sqrt{\max(1, n / m)}\, u_t + \lambda w_t \right)
    \end{aligned}
    $$

    for a matrix of $m$ rows (inputs) and $n$ columns (outputs), with $g_t$ the gradient at $w_t$, $m_0 = 0$ and
    $g'_1 = 0$; $g'_t$ is that of `MARS`. $U V^\top$ is approximated by a Newton-Schulz iteration, as in `Muon`. As in
    `Muon`, `roles` finds the matrices, and AdamW trains all other parameters.

    `MARSM` is a later form: its updates have the size of those of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate of the second moment of other parameters that `where` includes.
        eps: added to the norm of $m_t / (1 - \beta_1)$ before the first iteration, and to the denominators of Adam.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the first moments; by default that of the parameters.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        where: which parameters MARS trains, a mask as in `Masked`: by default the matrices. Others are trained as by
            `MARS`; `where=True` for all.
        consistent_rms: root mean square $\rho$ of an update, for the factor $\rho \sqrt{\max(m, n)}$; None for the one
            above.
        ns_coeffs: coefficients of the Newton-Schulz iteration, as in `ScaleByMuon`.
        ns_steps: number of iterations with a single triple of coefficients.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        dtype: dtype of the matrices within the Newton-Schulz iteration, as in `ScaleByMuon`.
        over: axes of the mesh over which the iteration is divided, as in `ScaleByMuon`.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    learning_rate: Hyperparameter = number(3e-3)
    b1: Hyperparameter = number(0.95, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: dataclasses.KW_ONLY
    gamma: Hyperparameter = number(0.025)
    max_norm: OptionalNumber = number(1.0, needs=NON_NEGATIVE, optional=True)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    exact: bool = eqx.field(static=True, default=False)
    where: Any = eqx.field(static=True, default=None, converter=as_labels)
    consistent_rms: OptionalNumber = number(None, optional=True)
    ns_coeffs: Any = numbers(((3.4445, -4.775, 2.0315),), arranged=as_coefficients)
    ns_steps: int = eqx.field(static=True, default=5, metadata={"least": 0})
    adam_b1: Hyperparameter = number(0.9, needs=DECAY)
    adam_b2: Hyperparameter = number(0.95, needs=DECAY)
    adam_weight_decay: Hyperparameter = number(0.1)
    adam_learning_rate: OptionalNumber = number(None, optional=True)
    roles: Any = eqx.field(static=True, default=None, converter=as_roles)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    over: str | tuple[str, ...] | None = eqx.field(static=True, default=None, converter=axis_names)

    def _effect(self, tree: Params, state: State | None = None) -> Effect:
        del state
        if self.where is None:
            return mistakes_beside_adamw(self, self.roles, tree)
        return Effect(warnings=names_that_deny(self, self.roles, tree))

    def labels(self) -> AbstractLabels:
        return super().labels() if self.where is not None else self._labels("mars")

    def _labels(self, matrix: str) -> MatrixLabels:
        return MatrixLabels("MARSShampoo(roles=...)", self.roles, matrix, "adam")

    def directions(self) -> tuple[Any, AbstractTransform, AbstractTransform]:
        with jax.numpy_dtype_promotion("standard"):
            eps = self.eps * (1 - self.b1)  # of the average, whose norm is that of the sum times this
        muon = self._part(ScaleByMuon, beta=self.b1, eps=eps, nesterov=False, weight_dimension_numbers=self.roles)
        matrices = Chain(muon, ScaleByShape(self.roles, self.consistent_rms))
        rates = ((self.b1, self.b2), (self.adam_b1, self.adam_b2))
        others, adam = (ScaleByAdam(b1, b2, self.eps, mu_dtype=self.mu_dtype) for b1, b2 in rates)
        return self.b1, Partition({"muon": matrices, "adam": others}, self._labels("muon")), adam
