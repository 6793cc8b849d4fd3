"""AdaHessian: Adam with the squares of estimates of the Hessian's diagonal as second moment."""

from typing import Any

import jax.numpy as jnp

from .. import authoring as ma
from .._roles.role import AbstractRole
from .._support.arithmetic import safe_power
from .._transforms.block_means import (
    AbstractOverBlocks,
    Shape,
    averaged,
    means,
    per_output,
    per_window,
    roles_of_blocks,
    spread_over,
)
from .._transforms.hessian_diagonal import HutchinsonDiagonal
from ..tree._math import widened
from .adam import AbstractAdamRule


class ScaleByAdaHessianState(ma.AbstractState):
    """State of `ScaleByAdaHessian`: step count, first moment, average of squared estimates, state of the estimator."""

    count: ma.Count = ma.shared()
    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    hessian_fn_state: ma.PyTree = ma.nested()


class AbstractAdaHessian(ma.AbstractMoments):
    r"""The hyperparameters of AdaHessian.

    Args:
        b2: exponential decay rate $\beta_2$ of the average of the squared estimates.
        eps: $\varepsilon$, added to the denominator.
        hessian_power: $k$, the power of the estimate; the authors try 0.5 too.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        per_output: whether the estimate is averaged over the weights of each output of a matrix, and of each token.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Of `Other()`, each entry is a block.
    """

    eps: ma.Number = ma.number(1e-4)
    hessian_power: ma.Number = ma.number(1.0, needs=ma.FRACTION)
    hessian_diagonal_fn: ma.AbstractTransform = HutchinsonDiagonal()
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    per_output: bool = ma.static(False)
    roles: Any = roles_of_blocks()


class ScaleByAdaHessian(AbstractAdaHessian, ma.AbstractContainer):
    r"""Divides the first moment by the root of an average of squared Hessian estimates: the direction of AdaHessian.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) (\operatorname{mean}_{\text{block}} |\hat h_t|)^2 \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{(v_t / (1 - \beta_2^t))^{k/2} + \varepsilon}
    \end{aligned}
    $$

    The estimate $\hat h_t$ of the Hessian's diagonal is made in every step, by default Hutchinson's with random signs.
    It needs the extra argument `obj_fn`; see `HutchinsonDiagonal`. A block is the window of a convolution, for each
    pair of channels, and a single entry of every other array. With `per_output`, as in the authors' code for
    transformers, it is all weights of one output of a matrix, or of one token of an embedding.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of the squared estimates.
        eps: $\varepsilon$, added to the denominator.
        hessian_power: $k$, the power of the estimate; the authors try 0.5 too.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        per_output: whether the estimate is averaged over the weights of each output of a matrix, and of each token.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Of `Other()`, each entry is a block.

    References:
        Yao et al., [ADAHESSIAN: An Adaptive Second Order Optimizer for Machine
        Learning](https://arxiv.org/abs/2006.00719), 2020, and the authors'
        [code](https://github.com/amirgholami/adahessian).
    """

    needs = ("params", "real")
    clock = "steps"

    hessian_diagonal_fn: ma.AbstractTransform = ma.part(HutchinsonDiagonal(), state="hessian_fn_state", auxiliary=True)

    def init(self, params: ma.Params) -> ScaleByAdaHessianState:
        """Zero moments, and the state of the estimator."""
        direction = self._direction().init(params)
        nu = averaged(direction.nu, self.roles.labels(params), self._numbers_of)
        return ScaleByAdaHessianState(direction.count, direction.mu, nu, self.hessian_diagonal_fn.init(params))

    def update(
        self, updates: ma.Updates, state: ScaleByAdaHessianState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, ScaleByAdaHessianState]:
        """One step, with a new Hessian estimate."""
        now = self.resolved(state)
        # In at least float32, because the estimate is squared.
        h, inner = now.hessian_diagonal_fn.update(widened(updates), state.hessian_fn_state, params, **extra)
        _, mean = _MeanSquares(now.b2).update(h, _MeanSquaresState(state.nu))
        updates, after = now._direction().update(updates, _DirectionState(state.mu, mean.nu, count=state.count), params)
        return updates, ScaleByAdaHessianState(after.count, after.mu, after.nu, inner)

    def _direction(self) -> "_Direction":
        return _Direction(self.b1, self.b2, self.eps, self.hessian_power, self.mu_dtype)

    def _numbers_of(self, role: AbstractRole, shape: Shape) -> Shape:
        return per_window(role, shape) or (per_output(role, shape) if self.per_output else None) or shape


class _MeanSquaresState(ma.AbstractState):
    nu: ma.PyTree


class _MeanSquares(AbstractOverBlocks[_MeanSquaresState]):
    """The average of squares of means of absolute values, over the blocks that there are in the state."""

    by_blocks = ("nu",)

    b2: ma.Number = ma.required_number()

    def init_leaf(self, p):
        return _MeanSquaresState(ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        return g, _MeanSquaresState(ma.moment(self.b2, s.nu, ma.abs_sq(means(jnp.abs(g), s.nu.shape))))


class _DirectionState(ma.AbstractState):
    mu: ma.PyTree
    nu: ma.PyTree
    count: ma.Shared[ma.Count] = ma.counter()


class _Direction(AbstractOverBlocks[_DirectionState], AbstractAdamRule[_DirectionState]):
    """The step of AdaHessian on one array, given the average `nu` of the squared estimates."""

    by_blocks = ("nu",)

    b1: ma.Number = ma.required_number()
    b2: ma.Number = ma.required_number()
    eps: ma.Number = ma.required_number()
    hessian_power: ma.Number = ma.required_number()
    mu_dtype: ma.DTypeLike | None = ma.static(None)

    def init_leaf(self, p):
        return _DirectionState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        denominator = self.eps + safe_power(s.nu / now.bias2, self.hessian_power / 2)
        return mu / now.bias1 / spread_over(denominator, g.shape), _DirectionState(mu=mu, nu=s.nu)


class AdaHessian(AbstractAdaHessian, ma.AbstractDecayed, ma.AbstractMoments, ma.AbstractRated):
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
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        per_output: whether the estimate is averaged over the weights of each output of a matrix, and of each token.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Of `Other()`, each entry is a block.

    References:
        Yao et al., [ADAHESSIAN: An Adaptive Second Order Optimizer for Machine
        Learning](https://arxiv.org/abs/2006.00719), 2020, and the authors'
        [code](https://github.com/amirgholami/adahessian).
    """

    direction = ScaleByAdaHessian
    learning_rate: ma.Number = ma.number(0.15)
