"""The optimizer AdaHessian."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import DECAY, FRACTION
from .._transforms.adahessian import ScaleByAdaHessian
from .._transforms.block_means import roles_of_blocks
from .._transforms.hessian_diagonal import HutchinsonDiagonal
from .decayed import decayed


class AdaHessian(AbstractOptimizer):
    r"""Adam whose second moment averages squared estimates of the Hessian's diagonal, not squared gradients.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    \hat h_t &= r_t \odot \nabla^2 f(w_t)\, r_t, \qquad r_t \text{ random signs} \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) (\operatorname{mean}_{\text{block}} |\hat h_t|)^2 \\
    w_{t+1} &= w_t - \eta \left( \frac{m_t / (1 - \beta_1^t)}{(v_t / (1 - \beta_2^t))^{k/2} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. A block is the window of a convolution, for each pair of
    channels, and a single entry of every other array. With `per_output`, as in the authors' code for transformers, it
    is all weights of one output of a matrix, or of one token of an embedding. The kind of each array follows from its
    role.

    A step costs about two gradients more than one of Adam. Every call needs the objective $f$, a function of the
    parameters alone; `HutchinsonDiagonal` explains how to pass it the batch:

        optimizer = AdaHessian()
        obj_fn = jax.tree_util.Partial(loss, batch=batch)
        params, state = optimizer.step(grads, state, params, obj_fn=obj_fn)

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of the squared estimates.
        eps: $\varepsilon$, added to the denominator.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        hessian_power: $k$, the power of the estimate; the authors try 0.5 too.
        hessian_diagonal_fn: transform that returns $\hat h_t$; by default `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        per_output: whether the estimate is averaged over the weights of each output of a matrix, and of each token.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Of `Other()`, each entry is a block.

    References:
        Yao et al., [ADAHESSIAN: An Adaptive Second Order Optimizer for Machine
        Learning](https://arxiv.org/abs/2006.00719), 2020, and the authors'
        [code](https://github.com/amirgholami/adahessian).
    """

    learning_rate: Hyperparameter = number(0.15)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-4)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    hessian_power: Hyperparameter = number(1.0, needs=FRACTION)
    hessian_diagonal_fn: AbstractTransform = HutchinsonDiagonal()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    per_output: bool = eqx.field(static=True, default=False)
    roles: Any = roles_of_blocks()

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleByAdaHessian))
