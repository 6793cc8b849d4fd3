"""MARS-M: Muon with variance reduction."""

from typing import ClassVar

from .. import authoring as ma
from .._transforms.variance_reduction import ReduceVariance
from .beside_adamw import AbstractBesideOwnAdamW
from .mars import AbstractVarianceReduced
from .muon import AbstractOrthogonalized, AbstractScaledByShape, ScaleByMuon


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
