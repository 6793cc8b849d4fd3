"""Sophia: clipped steps divided by an estimate of the Hessian's diagonal.

`ScaleBySophia` runs an estimator of the diagonal, which is itself a transform (by default `HutchinsonDiagonal`), every
`update_interval` steps. The estimates are averaged by `Ema`, and `_Direction`, a rule on one array, makes the clipped
step from that average and the first moment.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Number, OptionalNumber, followed, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import bias, moment, second_moment_like, zeros_in
from .._support.checks import AT_LEAST_ONE, DECAY, POSITIVE
from .._support.keys import key, next_keys
from .._support.module import AbstractState, counter, like_params, nested, shared
from .._support.tracing import call_user
from .._support.types import Count, Follow, Params, Shared, State, Updates
from .._support.varying import cond, varying_like
from ..tree._arithmetic import clip_entries
from .momentum import Ema, EmaState


class HutchinsonState(AbstractState):
    """State of `HutchinsonDiagonal`: raw data of the key for the next estimate."""

    optax_fields: ClassVar[tuple[str, ...]] = ("key",)

    key: Array = shared()


class HutchinsonDiagonal(AbstractTransform):
    r"""Replaces the updates by Hutchinson's estimate of the diagonal of the Hessian: $u = r \odot \nabla^2 f(w)\, r$.

    The entries of $r$ are $\pm 1$ with equal probability. The estimate is unbiased, and exact if the Hessian is
    diagonal. It costs about two gradients.

    The objective $f$ is the extra argument `obj_fn`, a function of the parameters alone. Outside of your own `jit`, a
    plain function is compiled at every call; bind the batch as an array in a `jax.tree_util.Partial`, and nothing is:

        obj_fn = jax.tree_util.Partial(loss, batch=batch)
        transform.update(grads, state, params, obj_fn=obj_fn)

    For a whole model, `obj_fn` receives its floating-point arrays, with None in place of all other leaves;
    `eqx.combine` merges the two.

    Args:
        key: a seed, or a JAX key, for the random signs.

    References:
        Hutchinson, [A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
        splines](https://doi.org/10.1080/03610919008812866), 1990;
        Bekas et al., [An estimator for the diagonal of a matrix](https://doi.org/10.1016/j.apnum.2007.01.003), 2007.
    """

    needs: ClassVar[tuple[str, ...]] = ("params", "obj_fn", "real")

    key: Any = key()

    def init(self, params: Params) -> HutchinsonState:
        """A copy of the key."""
        del params
        return HutchinsonState(key=jnp.array(self.key, copy=True))

    def update(
        self,
        updates: Updates,
        state: HutchinsonState,
        params: Params | None = None,
        obj_fn: Callable[[Params], Array] | None = None,
        **extra: Any,
    ) -> tuple[Updates, HutchinsonState]:
        """The estimate, in the dtypes of the updates, and the next key."""
        del extra
        assert obj_fn is not None
        leaves, treedef = jtu.tree_flatten(params)
        kept, keys = next_keys(state.key, len(leaves))
        # In the dtypes of the parameters, which `jax.jvp` requires of tangents.
        signs = [jax.random.rademacher(k, p.shape, p.dtype) for k, p in zip(keys, leaves, strict=True)]
        # In a `shard_map`, `jax.jvp` requires tangents that vary over the mesh axes over which the parameters do.
        signs = varying_like(leaves, signs)
        _, product = jax.jvp(jax.grad(functools.partial(call_user, obj_fn)), (params,), (treedef.unflatten(signs),))
        products = zip(jtu.tree_leaves(product), signs, jtu.tree_leaves(updates), strict=True)
        return treedef.unflatten([(h * r).astype(u.dtype) for h, r, u in products]), HutchinsonState(key=kept)


class ScaleBySophiaState(AbstractState):
    """State of `ScaleBySophia`: step count, first moment `mu`, average `nu` of estimates, state of the estimator."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "mu", "nu", "hessian_fn_state")

    count: Count = shared()
    mu: PyTree = like_params(moment=1.0)
    # An estimate of a diagonal entry may be negative.
    nu: PyTree = like_params()
    hessian_fn_state: State = nested()


class ScaleBySophia(AbstractContainer):
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

    needs: ClassVar[tuple[str, ...]] = ("params", "real")
    clock: ClassVar[Clock] = "steps"

    b1: Number = number(0.965, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    eps: Number = number(1e-8, needs=POSITIVE)
    gamma: Number = number(0.01)
    clip_threshold: OptionalNumber = number(1.0, optional=True)
    update_interval: Number = number(10, needs=AT_LEAST_ONE)
    hessian_diagonal_fn: AbstractTransform = part(HutchinsonDiagonal(), state="hessian_fn_state", auxiliary=True)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    follow: Follow = followed()

    def init(self, params: Params) -> ScaleBySophiaState:
        """Zero moments, and the state of the estimator."""
        direction = self._direction().init(params)
        return ScaleBySophiaState(
            count=direction.count,
            mu=direction.mu,
            nu=direction.nu,
            hessian_fn_state=self.hessian_diagonal_fn.init(params),
        )

    def update(
        self, updates: Updates, state: ScaleBySophiaState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScaleBySophiaState]:
        """One step, with a new Hessian estimate if it is due."""
        now = self.resolved(state)

        def estimate() -> tuple[PyTree, State]:
            h, inner = now.hessian_diagonal_fn.update(updates, state.hessian_fn_state, params, **extra)
            _, mean = Ema(now.b2, debias=False).update(h, EmaState(ema=state.nu, count=state.count), params)
            return mean.ema, inner

        # `cond` rather than `where`: an estimate costs about two gradients and isn't due at most steps.
        is_time = state.count % jnp.asarray(now.update_interval).astype(state.count.dtype) == 0
        nu, inner = cond(is_time, estimate, lambda: (state.nu, state.hessian_fn_state))
        used = nu if self.follow == "paper" else state.nu
        before = _DirectionState(mu=state.mu, nu=used, count=state.count)
        updates, after = now._direction().update(updates, before, params)
        return updates, ScaleBySophiaState(count=after.count, mu=after.mu, nu=nu, hessian_fn_state=inner)

    def _direction(self) -> "_Direction":
        corrects = self.follow == "optax"
        return _Direction(self.b1, self.eps, self.gamma, self.clip_threshold, self.mu_dtype, corrects)


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
