"""MARS, MARSLion, MARSShampoo and MARSM: AdamW, Lion and Muon of gradients with reduced variance."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.tree_util as jtu

from .. import authoring as ma
from .._containers.partition import Partition
from .._protocol.masks import AbstractLabels, mask_of
from .._protocol.transform import Effect
from .._transforms.matrices import MatrixLabels
from .._transforms.variance_reduction import ReduceVariance
from .adam import ScaleByAdam
from .amsgrad import ScaleByAMSGrad
from .beside_adamw import (
    AbstractAdamForOthers,
    AbstractBesideOwnAdamW,
    AbstractByRole,
    mistakes_beside_adamw,
    names_that_deny,
)
from .lion import ScaleByLion
from .muon import AbstractNewtonSchulz, AbstractOrthogonalized, AbstractScaledByShape, ScaleByMuon, ScaleByShape


@dataclasses.dataclass(frozen=True)
class _Labels(AbstractLabels):
    """`"mars"` for the parameters of a mask, by default those with at least two axes, and `"adam"` for others."""

    owner: str
    where: AbstractLabels | None

    def labels(self, tree: ma.PyTree, *, partial: bool = False) -> list[Any]:
        del partial
        is_matrix = [x.ndim > 1 for x in jtu.tree_leaves(tree)]
        mask = is_matrix if self.where is None else mask_of(self.owner, self.where, tree, "where")
        return ["mars" if x else "adam" for x in mask]

    def refuse_unused(self, owner: object, tree: ma.PyTree) -> None:
        if self.where is not None:
            self.where.refuse_unused(owner, tree)


class AbstractVarianceReduced(ma.AbstractFields):
    r"""The hyperparameters of `ReduceVariance`, without the decay rate of the momentum.

    Args:
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
    """

    _: dataclasses.KW_ONLY
    gamma: ma.Number = ma.number(0.025)
    max_norm: ma.OptionalNumber = ma.number(1.0, needs=ma.NON_NEGATIVE, optional=True)
    exact: bool = ma.static(False)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("previous_grad",) if self.exact else ()


class AbstractMARS(  # pyright: ignore[reportIncompatibleVariableOverride]
    AbstractVarianceReduced, AbstractAdamForOthers, ma.AbstractDecayedByName, ma.AbstractRated
):
    """MARS with any direction: the base class of its forms.

    Args:
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes, in
            `MARSShampoo` the matrices; `where=True` for all.
    """

    learning_rate: ma.Number = ma.number(3e-3)
    _: dataclasses.KW_ONLY
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    where: ma.Mask = ma.mask()
    adam_weight_decay: ma.Number = ma.number(0.1)

    @abc.abstractmethod
    def _adam(self, b1: Any, b2: Any) -> ma.AbstractTransform:
        """Return the direction of Adam with these decay rates, such as that of the parameters that AdamW trains."""

    def labels(self) -> AbstractLabels:
        """Return which parameters are trained by `"mars"`, and which by `"adam"`."""
        return _Labels(type(self).__name__, self.where)

    def transform(self) -> Partition:
        rate = self.learning_rate if self.adam_learning_rate is None else self.adam_learning_rate
        decay = ma.AddDecayedWeights(self.adam_weight_decay)
        adam = ma.Chain(self._adam(self.adam_b1, self.adam_b2), decay, ma.ScaleByLearningRate(rate))
        return Partition({"mars": super().transform(), "adam": adam}, self.labels())


class MARS(ma.AbstractMoments, AbstractMARS):
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

    As in the authors' code, AdamW trains vectors and scalars, with its own decay rates and the same $\varepsilon$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes, in
            `MARSShampoo` the matrices; `where=True` for all.
        amsgrad: whether to divide by the root of the largest second moment so far, as in `AMSGrad`.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    b1: ma.Number = ma.number(0.95, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    _: dataclasses.KW_ONLY
    amsgrad: bool = ma.static(False)

    def directions(self):
        return [self._part(ReduceVariance, beta=self.b1), self._adam(self.b1, self.b2)]

    def _adam(self, b1, b2):
        scale = ScaleByAMSGrad if self.amsgrad else ScaleByAdam
        return scale(b1, b2, self.eps, mu_dtype=self.mu_dtype)


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
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes, in
            `MARSShampoo` the matrices; `where=True` for all.
        adam_eps: AdamW's $\varepsilon$.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    beta: ma.Number = ma.number(0.95, needs=ma.DECAY)
    _: dataclasses.KW_ONLY
    adam_eps: ma.Number = ma.number(1e-8)

    def directions(self):
        return [self._part(ReduceVariance), ScaleByLion(self.beta, self.beta, self.mu_dtype)]

    def _adam(self, b1, b2):
        return ScaleByAdam(b1, b2, self.adam_eps, mu_dtype=self.mu_dtype)


class MARSShampoo(AbstractByRole, AbstractNewtonSchulz, AbstractMARS):
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
    `Muon`, `roles` finds the matrices, and AdamW trains all other parameters, except that those which `where` includes
    are trained as by `MARS`.

    `MARSM` is a later form: its updates have the size of those of Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the momentum.
        b2: exponential decay rate of the second moment of other parameters that `where` includes.
        eps: added to the norm of $m_t / (1 - \beta_1)$ before the first iteration, and to the denominators of Adam.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which of the parameters that MARS trains decay, as in `AddDecayedWeights`; by default all.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        gamma: strength $\gamma$ of the correction.
        max_norm: largest norm $\Delta$ of a corrected gradient; None for no clipping.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        where: which parameters MARS trains, a mask as in `Masked`: by default those with at least two axes, in
            `MARSShampoo` the matrices; `where=True` for all.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        consistent_rms: root mean square $\rho$ of an update, for the factor $\rho \sqrt{\max(m, n)}$; None for the one
            above.

    References:
        Yuan et al., [MARS: Unleashing the Power of Variance Reduction for Training Large
        Models](https://arxiv.org/abs/2411.10438), 2024, and the authors' [code](https://github.com/AGI-Arena/MARS).
    """

    b1: ma.Number = ma.number(0.95, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    _: dataclasses.KW_ONLY
    consistent_rms: ma.OptionalNumber = ma.number(None, optional=True)

    def _effect(self, tree: ma.Params) -> Effect:
        if self.where is None:
            return mistakes_beside_adamw(self, self.roles, tree)
        return Effect(warnings=names_that_deny(self, self.roles, tree))

    def labels(self) -> AbstractLabels:
        return super().labels() if self.where is not None else self._labels("mars")

    def _labels(self, matrix: str) -> MatrixLabels:
        return MatrixLabels("MARSShampoo(roles=...)", self.roles, matrix, "adam")

    def directions(self):
        with jax.numpy_dtype_promotion("standard"):
            eps = self.eps * (1 - self.b1)  # of the average, whose norm is that of the sum times this
        muon = self._part(ScaleByMuon, beta=self.b1, eps=eps, nesterov=False, weight_dimension_numbers=self.roles)
        matrices = ma.Chain(muon, self._part(ScaleByShape, weight_dimension_numbers=self.roles))
        parts = {"muon": matrices, "adam": self._adam(self.b1, self.b2)}
        return [self._part(ReduceVariance, beta=self.b1), Partition(parts, self._labels("muon"))]

    def _adam(self, b1, b2):
        return ScaleByAdam(b1, b2, self.eps, mu_dtype=self.mu_dtype)


class AbstractMARSM(AbstractVarianceReduced, AbstractOrthogonalized):
    r"""The hyperparameters of MARS-M before the weight decay.

    Args:
        eps: added to the norm that a matrix is divided by before the first iteration.
        consistent_rms: $\rho$, the root mean square of an update.
    """

    gamma: ma.Number = ma.number(0.025)
    max_norm: ma.OptionalNumber = ma.number(1.0, needs=ma.NON_NEGATIVE, optional=True)
    eps: ma.Number = ma.number(1e-7)
    consistent_rms: ma.Number = ma.number(0.2)


class MARSM(  # pyright: ignore[reportIncompatibleVariableOverride]
    AbstractScaledByShape, AbstractBesideOwnAdamW, AbstractMARSM, ma.AbstractRated
):
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
        eps: added to the norm that a matrix is divided by before the first iteration.
        consistent_rms: $\rho$, the root mean square of an update.
        weight_decay: weight decay coefficient $\lambda$ of the matrices, multiplied by the learning rate.
        mask: which matrices decay, as in `AddDecayedWeights`; by default all.
        mu_dtype: dtype of the momentum and of AdamW's first moment; by default that of the parameters.
        ns_coeffs: coefficients of the Newton-Schulz iteration: three numbers, or one triple per iteration, or the name
            of a preset, as in `linalg.orthogonalize`. They are stored as a tuple of triples, each number of which may
            be a schedule.
        ns_steps: number of iterations with a single triple of coefficients.
        dtype: dtype of the matrices within the iteration, as in `linalg.orthogonalize`. Momentum and updates keep
            theirs.
        over: axes of the mesh over which the work is divided, such as `"data"`, if parameters or state are on one; all
            axes by default. With `()`, each array is computed where it is, which suits stacks of layers that are
            divided along the axis of the layers.
        preconditioning: how a matrix is scaled before the first iteration: `"frobenius"`, `"spectral"`, `"aol"` or
            `"schatten"`, see `linalg.orthogonalize`.
        per_head: whether each head of a query, key or value is orthogonalized on its own. Query, key and value in one
            array always are, where the role says so.
        exact: whether `update` and `step` are given `previous_grad`, as in `ReduceVariance`.
        adam_b1: exponential decay rate of AdamW's first moment.
        adam_b2: exponential decay rate of AdamW's second moment.
        adam_weight_decay: weight decay coefficient of AdamW, multiplied by its learning rate.
        adam_learning_rate: learning rate of AdamW, a number or a schedule; None for $\eta$.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.
        cautious_weight_decay: whether only entries of matrices decay that the update moves towards zero, as in
            `AddDecayedWeights(cautious=True)`.
        adam_eps: AdamW's $\varepsilon$.

    References:
        Liu et al., [MARS-M: When Variance Reduction Meets Matrices](https://arxiv.org/abs/2510.21800), 2025, and the
        authors' [code](https://github.com/AGI-Arena/MARS).
    """

    direction = ScaleByMuon
    nesterov: ClassVar[bool] = False
    learning_rate: ma.Number = ma.number(1e-3)
    weight_decay: ma.Number = ma.number(0.1)
    _: ma.KW_ONLY
    adam_weight_decay: ma.Number = ma.number(0.1)

    def directions(self):
        return [self._part(ReduceVariance), *super().directions()]
