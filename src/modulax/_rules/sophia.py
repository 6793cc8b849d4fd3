"""Sophia: clipped steps divided by an estimate of the Hessian's diagonal.

`AbstractSophiaStep` runs an estimator of the diagonal, which is itself a transform (`hessian_diagonal.py`), every
`update_interval` steps. The estimates are averaged by `Ema`, and `_Direction`, a rule on one array, makes the clipped
step from that average and the first moment. The paper's form, `ScaleBySophia`, estimates in the first step and uses
Hutchinson's estimates by default; `ScaleBySophiaG`, that of the authors' training script, waits, and uses squares of
sampled gradients.
"""

import abc
from typing import Any

import jax.numpy as jnp

from .. import authoring as ma
from .._support.varying import cond
from .._transforms.hessian_diagonal import GaussNewtonBartlett, HutchinsonDiagonal
from .._transforms.momentum import Ema, EmaState
from ..tree._arithmetic import clip_entries
from ..tree._math import widened


class ScaleBySophiaState(ma.AbstractState):
    """State of `ScaleBySophia`: step count, first moment `mu`, average `nu` of estimates, state of the estimator."""

    optax_fields = ("count", "mu", "nu", "hessian_fn_state")

    count: ma.Count = ma.shared()
    mu: ma.PyTree = ma.like_params(moment=1.0)
    # An estimate of a diagonal entry may be negative.
    nu: ma.PyTree = ma.like_params()
    hessian_fn_state: ma.PyTree = ma.nested()


class AbstractSophiaStep(ma.AbstractContainer):
    """A first moment divided by an average of Hessian estimates, which another transform makes every few steps."""

    needs = ("params", "real")
    clock = "steps"

    @abc.abstractmethod
    def estimator(self) -> tuple[ma.AbstractTransform, Any]:
        """Return the transform that makes the estimates, and the exponential decay rate of their average."""

    @abc.abstractmethod
    def direction(self) -> "_Direction":
        """Return the rule on one array that makes the step."""

    @abc.abstractmethod
    def is_due(self, count: ma.Array) -> ma.Array:
        """Return whether an estimate is due.

        Args:
            count: the number of previous steps.
        """

    @abc.abstractmethod
    def used(self, before: ma.PyTree, after: ma.PyTree) -> ma.PyTree:
        """Return the average of the estimates that the step uses.

        Args:
            before: the average before the step.
            after: the average after it.
        """

    def init(self, params: ma.Params) -> ScaleBySophiaState:
        """Zero moments, and the state of the estimator."""
        direction = self.direction().init(params)
        return ScaleBySophiaState(
            count=direction.count,
            mu=direction.mu,
            nu=direction.nu,
            hessian_fn_state=self.estimator()[0].init(params),
        )

    def update(
        self, updates: ma.Updates, state: ScaleBySophiaState, params: ma.Params | None = None, **extra: Any
    ) -> tuple[ma.Updates, ScaleBySophiaState]:
        """One step, with a new Hessian estimate if it is due."""
        now = self.resolved(state)
        estimator, b2 = now.estimator()

        def estimate() -> tuple[ma.PyTree, ma.PyTree]:
            # In at least float32: squares of small gradients are zero in float16.
            h, inner = estimator.update(widened(updates), state.hessian_fn_state, params, **extra)
            _, mean = Ema(b2, debias=False).update(h, EmaState(ema=state.nu, count=state.count), params)
            return mean.ema, inner

        # `cond` rather than `where`: an estimate costs about two gradients and isn't due at most steps.
        nu, inner = cond(now.is_due(state.count), estimate, lambda: (state.nu, state.hessian_fn_state))
        before = _DirectionState(mu=state.mu, nu=self.used(state.nu, nu), count=state.count)
        updates, after = now.direction().update(updates, before, params)
        return updates, ScaleBySophiaState(count=after.count, mu=after.mu, nu=nu, hessian_fn_state=inner)


def is_multiple(count: ma.Array, interval: Any) -> ma.Array:
    """Whether a count is a multiple of an interval."""
    return count % jnp.asarray(interval).astype(count.dtype) == 0


class AbstractSophia(ma.AbstractMoments):
    r"""The hyperparameters of Sophia.

    Args:
        b2: exponential decay rate $\beta_2$ of the average of Hessian estimates.
        eps: $\varepsilon$, the smallest denominator.
        gamma: factor $\gamma$ of the Hessian estimate; the larger it is, the fewer entries are clipped. The authors
            recommend a value for which 10 to 50 percent of the entries aren't clipped.
        clip_threshold: clipping bound $\rho$, or None for no clipping.
        update_interval: number $k$ of steps between two Hessian estimates.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        follow: `"paper"` uses an estimate in the step in which it is made. `"optax"` uses it from the next step on, so
            that the first step divides by $\varepsilon$, and divides $m_t$ by $1 - \beta_1^t$.
    """

    b1: ma.Number = ma.number(0.965, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8, needs=ma.POSITIVE)
    gamma: ma.Number = ma.number(0.01)
    clip_threshold: ma.OptionalNumber = ma.number(1.0, optional=True)
    update_interval: ma.Number = ma.number(10, needs=ma.WHOLE)
    hessian_diagonal_fn: ma.AbstractTransform = HutchinsonDiagonal()
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()


class ScaleBySophia(AbstractSophia, AbstractSophiaStep):
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
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        follow: `"paper"` uses an estimate in the step in which it is made. `"optax"` uses it from the next step on, so
            that the first step divides by $\varepsilon$, and divides $m_t$ by $1 - \beta_1^t$.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, algorithm 3.
    """

    hessian_diagonal_fn: ma.AbstractTransform = ma.part(HutchinsonDiagonal(), state="hessian_fn_state", auxiliary=True)

    def estimator(self) -> tuple[ma.AbstractTransform, Any]:
        return self.hessian_diagonal_fn, self.b2

    def direction(self) -> "_Direction":
        corrects = self.follow == "optax"
        return _Direction(self.b1, self.eps, self.gamma, self.clip_threshold, self.mu_dtype, corrects)

    def is_due(self, count: ma.Array) -> ma.Array:
        return is_multiple(count, self.update_interval)

    def used(self, before: ma.PyTree, after: ma.PyTree) -> ma.PyTree:
        return after if self.follow == "paper" else before


class AbstractSophiaGMoments(ma.AbstractFields):
    r"""The hyperparameters of SophiaG before the weight decay.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the average of the squares.
        rho: factor $\rho$ of the estimate; the larger it is, the fewer entries are clipped. The authors recommend a
            value for which 10 to 50 percent of the entries aren't clipped.
    """

    b1: ma.Number = ma.number(0.965, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    rho: ma.Number = ma.number(0.04)


class AbstractSophiaG(AbstractSophiaGMoments):
    r"""The hyperparameters of SophiaG.

    Args:
        batch_size: number $B$ of predictions over which `obj_fn` is the mean: for a language model, the tokens of the
            batch.
        update_interval: number $k$ of steps between two estimates.
        hessian_diagonal_fn: transform that returns $\hat g_t \odot \hat g_t$, given all extra arguments; by default
            `GaussNewtonBartlett()`.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.
    """

    batch_size: ma.Number = ma.number(5120)
    update_interval: ma.Number = ma.number(10, needs=ma.WHOLE)
    hessian_diagonal_fn: ma.AbstractTransform = GaussNewtonBartlett()
    _: ma.KW_ONLY
    eps: ma.Number = ma.number(1e-15, needs=ma.POSITIVE)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleBySophiaG(AbstractSophiaG, AbstractSophiaStep):
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
        hessian_diagonal_fn: transform that returns $\hat g_t \odot \hat g_t$, given all extra arguments; by default
            `GaussNewtonBartlett()`.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, and the authors'
        [code](https://github.com/Liuhong99/Sophia).
    """

    hessian_diagonal_fn: ma.AbstractTransform = ma.part(GaussNewtonBartlett(), state="hessian_fn_state", auxiliary=True)

    def estimator(self) -> tuple[ma.AbstractTransform, Any]:
        return self.hessian_diagonal_fn, self.b2

    def direction(self) -> "_Direction":
        return _Direction(self.b1, self.eps, self.rho * self.batch_size, 1.0, self.mu_dtype)

    def is_due(self, count: ma.Array) -> ma.Array:
        return is_multiple(count, self.update_interval) & (count > 0)

    def used(self, before: ma.PyTree, after: ma.PyTree) -> ma.PyTree:
        del before
        return after


class _DirectionState(ma.AbstractState):
    mu: ma.PyTree
    nu: ma.PyTree
    count: ma.Shared[ma.Count] = ma.counter()


class _Direction(ma.AbstractLeafwise[_DirectionState]):
    """The step of Sophia on one array, given the average `nu` of the Hessian estimates."""

    b1: ma.Number = ma.required_number()
    eps: ma.Number = ma.required_number()
    gamma: ma.Number = ma.required_number()
    clip_threshold: ma.OptionalNumber = ma.required_number(optional=True)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    corrects_bias: bool = ma.static(False)

    def init_leaf(self, p):
        return _DirectionState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def prepare(self, count):
        return ma.bias(self.b1, count + 1) if self.corrects_bias else 1

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g)
        u = mu / now / jnp.maximum(self.gamma * s.nu, self.eps)
        u = u if self.clip_threshold is None else clip_entries(u, -self.clip_threshold, self.clip_threshold)
        return u, _DirectionState(mu=mu, nu=s.nu)


class Sophia(AbstractSophia, ma.AbstractDecayed, ma.AbstractMoments, ma.AbstractRated):
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
        gamma: factor $\gamma$ of the Hessian estimate; the larger it is, the fewer entries are clipped. The authors
            recommend a value for which 10 to 50 percent of the entries aren't clipped.
        clip_threshold: clipping bound $\rho$, or None for no clipping.
        update_interval: number $k$ of steps between two Hessian estimates.
        hessian_diagonal_fn: transform that returns $\hat h_t$, given all extra arguments; by default
            `HutchinsonDiagonal()`.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        follow: `"paper"` uses an estimate in the step in which it is made. `"optax"` uses it from the next step on, so
            that the first step divides by $\varepsilon$, and divides $m_t$ by $1 - \beta_1^t$.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023.
    """

    direction = ScaleBySophia
    weight_decay: ma.Number = ma.number(1e-4)


class SophiaG(AbstractSophiaG, ma.AbstractDecayed, AbstractSophiaGMoments, ma.AbstractRated):
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
        rho: factor $\rho$ of the estimate; the larger it is, the fewer entries are clipped. The authors recommend a
            value for which 10 to 50 percent of the entries aren't clipped.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        batch_size: number $B$ of predictions over which `obj_fn` is the mean: for a language model, the tokens of the
            batch.
        update_interval: number $k$ of steps between two estimates.
        hessian_diagonal_fn: transform that returns $\hat g_t \odot \hat g_t$, given all extra arguments; by default
            `GaussNewtonBartlett()`.
        eps: $\varepsilon$, the smallest denominator.
        mu_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023, and the authors'
        [code](https://github.com/Liuhong99/Sophia).
    """

    direction = ScaleBySophiaG
    learning_rate: ma.Number = ma.number(1e-4)
    weight_decay: ma.Number = ma.number(0.1)
