"""The optimizer Sophia (Sophia-H)."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, followed, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import DECAY, POSITIVE, WHOLE
from .._support.types import Follow
from .._transforms.hessian_diagonal import GaussNewtonBartlett, HutchinsonDiagonal
from .._transforms.sophia import ScaleBySophia, ScaleBySophiaG
from .decayed import decayed


class Sophia(AbstractOptimizer):
    r"""Second-order optimizer for language models: clipped steps scaled by an estimate of the Hessian diagonal.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    \hat h_t &= r_t \odot \nabla^2 f(w_t)\, r_t, \qquad r_t \text{ random signs} \\
    h_t &= \begin{cases} \beta_2 h_{t-1} + (1 - \beta_2) \hat h_t & \text{every } k \text{ steps, starting at the first}
        \\ h_{t-1} & \text{otherwise} \end{cases} \\
    u_t &= \operatorname{clip}(m_t / \max(\gamma h_t, \varepsilon),\; \pm \rho) \\
    w_{t+1} &= w_t - \eta (u_t + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = h_0 = 0$. Every call needs the objective $f$, a function of the
    parameters alone; `HutchinsonDiagonal` explains how to pass it the batch:

        optimizer = Sophia(1e-3)
        obj_fn = jax.tree_util.Partial(loss, batch=batch)
        params, state = optimizer.step(grads, state, params, obj_fn=obj_fn)

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of Hessian estimates.
        eps: $\varepsilon$, the smallest denominator.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        gamma: factor $\gamma$ of the Hessian estimate; the larger it is, the fewer entries are clipped.
        clip_threshold: clipping bound $\rho$, or None for no clipping.
        update_interval: number $k$ of steps between two Hessian estimates.
        hessian_diagonal_fn: transform that returns $\hat h_t$; by default `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        follow: `"paper"`, or `"optax"`, which uses estimates one step later and corrects the bias of $m_t$.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.965, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8, needs=POSITIVE)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    gamma: Hyperparameter = number(0.01)
    clip_threshold: OptionalNumber = number(1.0, optional=True)
    update_interval: Hyperparameter = number(10, needs=WHOLE)
    hessian_diagonal_fn: AbstractTransform = HutchinsonDiagonal()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleBySophia))


class SophiaG(AbstractOptimizer):
    r"""Sophia with the Gauss-Newton-Bartlett estimate of the curvature, from squared gradients of sampled labels.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    h_t &= \begin{cases} \beta_2 h_{t-1} + (1 - \beta_2) \hat g_t \odot \hat g_t & t = k + 1, 2k + 1, \dots
        \\ h_{t-1} & \text{otherwise} \end{cases} \\
    w_{t+1} &= w_t - \eta (\operatorname{clip}(m_t / \max(\rho B h_t, \varepsilon),\; \pm 1) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = h_0 = 0$. The first $k$ steps are the signs of $m_t$. The gradient
    $\hat g_t$ is that of a loss for labels that are drawn from the predictions of the model, with a new key in every
    step. Every call needs this loss as a function of the parameters alone; `GaussNewtonBartlett` shows one:

        optimizer = SophiaG(1e-4, batch_size=tokens)
        obj_fn = jax.tree_util.Partial(sampled_loss, x=x, key=key)
        params, state = optimizer.step(grads, state, params, obj_fn=obj_fn)

    `Sophia` is the algorithm with Hutchinson's estimates, and uses one in the first step.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of the squares.
        rho: factor $\rho$ of the estimate; the larger it is, the fewer entries are clipped.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        batch_size: number $B$ of predictions over which the loss is the mean: for a language model, the tokens of the
            batch.
        update_interval: number $k$ of steps between two estimates.
        hessian_diagonal_fn: transform that returns $\hat g_t \odot \hat g_t$; by default `GaussNewtonBartlett()`.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, and the authors'
        [code](https://github.com/Liuhong99/Sophia).
    """

    learning_rate: Hyperparameter = number(1e-4)
    b1: Hyperparameter = number(0.965, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    rho: Hyperparameter = number(0.04)
    weight_decay: Hyperparameter = number(0.1)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    batch_size: Hyperparameter = number(5120)
    update_interval: Hyperparameter = number(10, needs=WHOLE)
    hessian_diagonal_fn: AbstractTransform = GaussNewtonBartlett()
    _: KW_ONLY
    eps: Hyperparameter = number(1e-15, needs=POSITIVE)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return decayed(self, self._part(ScaleBySophiaG))
