"""Sophia: clipped steps divided by an estimate of the Hessian's diagonal.

`AbstractSophia` runs an estimator of the diagonal, which is itself a transform (`hessian_diagonal.py`), every
`update_interval` steps. The estimates are averaged by `Ema`, and `_Direction`, a rule on one array, makes the clipped
step from that average and the first moment. The paper's form, `ScaleBySophia`, estimates in the first step and uses
Hutchinson's estimates by default; `ScaleBySophiaG`, that of the authors' training script, waits, and uses squares of
sampled gradients.
"""

import abc
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Number, OptionalNumber, followed, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import bias, moment, second_moment_like, zeros_in
from .._support.checks import DECAY, POSITIVE, WHOLE
from .._support.module import AbstractState, counter, like_params, nested, shared
from .._support.types import Count, Follow, Params, Shared, State, Updates
from .._support.varying import cond
from ..tree._arithmetic import clip_entries
from ..tree._math import widened
from .hessian_diagonal import GaussNewtonBartlett, HutchinsonDiagonal
from .momentum import Ema, EmaState


class ScaleBySophiaState(AbstractState):
    """State of `ScaleBySophia`: step count, first moment `mu`, average `nu` of estimates, state of the estimator."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu", "hessian_fn_state")

    count: Count = shared()
    mu: PyTree = like_params(moment=1.0)
    # An estimate of a diagonal entry may be negative.
    nu: PyTree = like_params()
    hessian_fn_state: State = nested()


class AbstractSophia(AbstractContainer):
    """A first moment divided by an average of Hessian estimates, which another transform makes every few steps."""

    needs: ClassVar[tuple[str, ...]] = ("params", "real")
    clock: ClassVar[Clock] = "steps"

    @abc.abstractmethod
    def estimator(self) -> tuple[AbstractTransform, Any]:
        """Return the transform that makes the estimates, and the exponential decay rate of their average."""

    @abc.abstractmethod
    def direction(self) -> "_Direction":
        """Return the rule on one array that makes the step."""

    @abc.abstractmethod
    def is_due(self, count: Array) -> Array:
        """Return whether an estimate is due.

        Args:
            count: the number of previous steps.
        """

    @abc.abstractmethod
    def used(self, before: PyTree, after: PyTree) -> PyTree:
        """Return the average of the estimates that the step uses.

        Args:
            before: the average before the step.
            after: the average after it.
        """

    def init(self, params: Params) -> ScaleBySophiaState:
        """Zero moments, and the state of the estimator."""
        direction = self.direction().init(params)
        return ScaleBySophiaState(
            count=direction.count,
            mu=direction.mu,
            nu=direction.nu,
            hessian_fn_state=self.estimator()[0].init(params),
        )

    def update(
        self, updates: Updates, state: ScaleBySophiaState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScaleBySophiaState]:
        """One step, with a new Hessian estimate if it is due."""
        now = self.resolved(state)
        estimator, b2 = now.estimator()

        def estimate() -> tuple[PyTree, State]:
            # In at least float32: squares of small gradients are zero in float16.
            h, inner = estimator.update(widened(updates), state.hessian_fn_state, params, **extra)
            _, mean = Ema(b2, debias=False).update(h, EmaState(ema=state.nu, count=state.count), params)
            return mean.ema, inner

        # `cond` rather than `where`: an estimate costs about two gradients and isn't due at most steps.
        nu, inner = cond(now.is_due(state.count), estimate, lambda: (state.nu, state.hessian_fn_state))
        before = _DirectionState(mu=state.mu, nu=self.used(state.nu, nu), count=state.count)
        updates, after = now.direction().update(updates, before, params)
        return updates, ScaleBySophiaState(count=after.count, mu=after.mu, nu=nu, hessian_fn_state=inner)


def is_multiple(count: Array, interval: Any) -> Array:
    """Whether a count is a multiple of an interval."""
    return count % jnp.asarray(interval).astype(count.dtype) == 0


class ScaleBySophia(AbstractSophia):
    r"""Divides the first moment by an estimate of the Hessian diagonal, and clips every entry: direction of Sophia.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    h_t &= \begin{cases} \beta_2 h_{t-1} + (1 - \beta_2) \hat h_t & \text{every } k \text{ steps, starting at the first}
        \\ h_{t-1} & \text{otherwise} \end{cases} \\
    u_t &= \operatorname{clip}(m_t / \max(\gamma h_t, \varepsilon),\; \pm \rho)
    \end{aligned}
    $$

    Where the curvature is small or negative, the clipped entry is $\pm\rho$. The estimate $\hat h_t$ of the Hessian's
    diagonal comes from another transform, by default Hutchinson's with random signs (the paper uses a normal vector).
    It needs the extra argument `obj_fn`; see `HutchinsonDiagonal`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of Hessian estimates.
        eps: $\varepsilon$, the smallest denominator.
        gamma: factor $\gamma$ of the Hessian estimate; the larger it is, the fewer entries are clipped. The authors
            recommend a value for which 10 to 50 percent of the entries aren't clipped.
        clip_threshold: clipping bound $\rho$, or None for no clipping.
        update_interval: number $k$ of steps between two Hessian estimates.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        follow: `"paper"` uses an estimate in the step in which it is made. `"optax"` uses it from the next step on, so
            that the first step divides by $\varepsilon$, and divides $m_t$ by $1 - \beta_1^t$.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, algorithm 3.
    """

    b1: Number = number(0.965, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    eps: Number = number(1e-8, needs=POSITIVE)
    gamma: Number = number(0.01)
    clip_threshold: OptionalNumber = number(1.0, optional=True)
    update_interval: Number = number(10, needs=WHOLE)
    hessian_diagonal_fn: AbstractTransform = part(HutchinsonDiagonal(), state="hessian_fn_state", auxiliary=True)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    follow: Follow = followed()

    def estimator(self) -> tuple[AbstractTransform, Any]:
        return self.hessian_diagonal_fn, self.b2

    def direction(self) -> "_Direction":
        corrects = self.follow == "optax"
        return _Direction(self.b1, self.eps, self.gamma, self.clip_threshold, self.mu_dtype, corrects)

    def is_due(self, count: Array) -> Array:
        return is_multiple(count, self.update_interval)

    def used(self, before: PyTree, after: PyTree) -> PyTree:
        return after if self.follow == "paper" else before


class ScaleBySophiaG(AbstractSophia):
    r"""Divides the first moment by an average of squares of sampled gradients, and clips every entry: SophiaG's step.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    h_t &= \begin{cases} \beta_2 h_{t-1} + (1 - \beta_2) \hat g_t \odot \hat g_t & t = k + 1, 2k + 1, \dots
        \\ h_{t-1} & \text{otherwise} \end{cases} \\
    u_t &= \operatorname{clip}(m_t / \max(\rho B h_t, \varepsilon),\; \pm 1)
    \end{aligned}
    $$

    with $h_0 = 0$, so that the first $k$ steps are the signs of the first moment. The gradient $\hat g_t$ is that of a
    loss for labels that are drawn from the predictions of the model, which is the extra argument `obj_fn`; see
    `GaussNewtonBartlett`.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of the squares.
        rho: factor $\rho$ of the estimate; the larger it is, the fewer entries are clipped. The authors recommend a
            value for which 10 to 50 percent of the entries aren't clipped.
        batch_size: number $B$ of predictions over which `obj_fn` is the mean: for a language model, the tokens of the
            batch.
        update_interval: number $k$ of steps between two estimates.
        hessian_diagonal_fn: transform that returns $\hat g_t \odot \hat g_t$, given all extra arguments.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, and the authors'
        [code](https://github.com/Liuhong99/Sophia).
    """

    b1: Number = number(0.965, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    rho: Number = number(0.04)
    batch_size: Number = number(5120)
    update_interval: Number = number(10, needs=WHOLE)
    hessian_diagonal_fn: AbstractTransform = part(GaussNewtonBartlett(), state="hessian_fn_state", auxiliary=True)
    _: KW_ONLY
    eps: Number = number(1e-15, needs=POSITIVE)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def estimator(self) -> tuple[AbstractTransform, Any]:
        return self.hessian_diagonal_fn, self.b2

    def direction(self) -> "_Direction":
        return _Direction(self.b1, self.eps, self.rho * self.batch_size, 1.0, self.mu_dtype)

    def is_due(self, count: Array) -> Array:
        return is_multiple(count, self.update_interval) & (count > 0)

    def used(self, before: PyTree, after: PyTree) -> PyTree:
        del before
        return after


class _DirectionState(AbstractState):
    mu: PyTree
    nu: PyTree
    count: Shared[Count] = counter()


class _Direction(AbstractLeafwise[_DirectionState]):
    """The step of Sophia on one array, given the average `nu` of the Hessian estimates."""

    b1: Number = required_number()
    eps: Number = required_number()
    gamma: Number = required_number()
    clip_threshold: OptionalNumber = required_number(optional=True)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    corrects_bias: bool = eqx.field(static=True, default=False)

    def init_leaf(self, p):
        return _DirectionState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return bias(self.b1, count + 1) if self.corrects_bias else 1

    def update_leaf(self, now, g, s, p):
        del p
        mu = moment(self.b1, s.mu, g)
        u = mu / now / jnp.maximum(self.gamma * s.nu, self.eps)
        u = u if self.clip_threshold is None else clip_entries(u, -self.clip_threshold, self.clip_threshold)
        return u, _DirectionState(mu=mu, nu=s.nu)
