"""The direction of AdaHessian: Adam with the squares of estimates of the Hessian's diagonal as second moment."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike, PyTree

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Number, number, required_number
from .._protocol.transform import AbstractTransform, Clock
from .._roles.role import AbstractRole
from .._support.arithmetic import abs_sq, moment, safe_power, second_moment_like, zeros_in
from .._support.checks import DECAY, FRACTION
from .._support.module import AbstractState, counter, like_params, nested, shared
from .._support.types import Count, Params, Shared, State, Updates
from ..tree._math import widened
from .adam import adam_numbers
from .block_means import (
    AbstractOverBlocks,
    Shape,
    averaged,
    means,
    per_output,
    per_window,
    roles_of_blocks,
    spread_over,
)
from .hessian_diagonal import HutchinsonDiagonal


class ScaleByAdaHessianState(AbstractState):
    """State of `ScaleByAdaHessian`: step count, first moment, average of squared estimates, state of the estimator."""

    count: Count = shared()
    mu: PyTree = like_params(moment=1.0)
    nu: PyTree = like_params(nonnegative=True)
    hessian_fn_state: State = nested()


class ScaleByAdaHessian(AbstractContainer):
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
        hessian_power: $k$, the power of the estimate.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        per_output: whether the estimate is averaged over the weights of each output of a matrix, and of each token.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`. Of `Other()`, each entry is a block.

    References:
        Yao et al., [ADAHESSIAN: An Adaptive Second Order Optimizer for Machine
        Learning](https://arxiv.org/abs/2006.00719), 2020, and the authors'
        [code](https://github.com/amirgholami/adahessian).
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "real")
    clock: ClassVar[Clock] = "steps"

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.999, needs=DECAY)
    eps: Number = number(1e-4)
    hessian_power: Number = number(1.0, needs=FRACTION)
    hessian_diagonal_fn: AbstractTransform = part(HutchinsonDiagonal(), state="hessian_fn_state", auxiliary=True)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    per_output: bool = eqx.field(static=True, default=False)
    roles: Any = roles_of_blocks()

    def init(self, params: Params) -> ScaleByAdaHessianState:
        """Zero moments, and the state of the estimator."""
        direction = self._direction().init(params)
        nu = averaged(direction.nu, self.roles.labels(params), self._numbers_of)
        return ScaleByAdaHessianState(direction.count, direction.mu, nu, self.hessian_diagonal_fn.init(params))

    def update(
        self, updates: Updates, state: ScaleByAdaHessianState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScaleByAdaHessianState]:
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


class _MeanSquaresState(AbstractState):
    nu: PyTree


class _MeanSquares(AbstractOverBlocks[_MeanSquaresState]):
    """The average of squares of means of absolute values, over the blocks that there are in the state."""

    b2: Number = required_number()

    def init_leaf(self, p):
        return _MeanSquaresState(second_moment_like(p))

    def by_blocks(self):
        return ("nu",)

    def update_leaf(self, now, g, s, p):
        del now, p
        return g, _MeanSquaresState(moment(self.b2, s.nu, abs_sq(means(jnp.abs(g), s.nu.shape))))


class _DirectionState(AbstractState):
    mu: PyTree
    nu: PyTree
    count: Shared[Count] = counter()


class _Direction(AbstractOverBlocks[_DirectionState]):
    """The step of AdaHessian on one array, given the average `nu` of the squared estimates."""

    b1: Number = required_number()
    b2: Number = required_number()
    eps: Number = required_number()
    hessian_power: Number = required_number()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def init_leaf(self, p):
        return _DirectionState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def by_blocks(self):
        return ("nu",)

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g, now.c1)
        denominator = self.eps + safe_power(s.nu / now.bias2, self.hessian_power / 2)
        return mu / now.bias1 / spread_over(denominator, g.shape), _DirectionState(mu=mu, nu=s.nu)
