"""`Mechanize`: the Mechanic learning-rate tuner, for any base optimizer."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._protocol.container import required_part
from .._protocol.fields import Number, followed, number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import at_least_float32, copy_in, default_float, safe_increment, safe_sqrt, zeros_in
from .._support.module import AbstractState, like_params, nested, shared
from .._support.types import Count, FollowReference, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic
from ..tree._math import choose, inner, norm, widened
from .order import AbstractSteering, refuse_examples


class MechanicState(AbstractState):
    """State of `Mechanize`: base optimizer state, step count, and one tuner per decay rate.

    For each decay rate, `r` is the reward, `m` the largest inner product, `v` the sum of its squares and `s` the scale.
    `x0` holds the initial parameters, and `delta` the sum of the steps, or None if it is computed from the parameters.
    """

    optax_fields = ("base_optimizer_state", "count", "r", "m", "v", "s", "x0")

    base_optimizer_state: State = nested()
    count: Count = shared()
    r: Float[Array, " n"] = shared()
    m: Float[Array, " n"] = shared()
    v: Float[Array, " n"] = shared()
    s: Float[Array, " n"] = shared()
    x0: PyTree = like_params(copied=True)
    delta: PyTree = like_params(exact=True)


class Mechanize(AbstractSteering):
    r"""Mechanic: tunes the learning rate of a base optimizer while training, by an online betting algorithm.

        Mechanize(AdamW(1.0))

    $$
    \begin{aligned}
    \Delta_{t+1} &= \Delta_t + u_t, \qquad u_t \text{ the step of the optimizer for } g_t \\
    h_t &= \Big\langle \Delta_t,\; g_t + \lambda \textstyle\sum_i s_{t,i}\, \|g_t\| \frac{x_t + u_t}{\|x_t + u_t\|
        + \varepsilon} \Big\rangle \\
    m_t &= \max(\beta m_{t-1}, |h_t|), \qquad v_t = \beta^2 v_{t-1} + h_t^2, \qquad
        r_t = \max(0, \beta r_{t-1} - s_t h_t) \\
    s_{t+1} &= \big(\tfrac{s_{init}}{n} m_t + r_t\big) / (\sqrt{v_t} + \varepsilon) \\
    x_{t+1} &= x_1 + \textstyle\sum_i s_{t+1,i}\, \Delta_{t+1}
    \end{aligned}
    $$

    $m, v, r, s$ have one entry for each of the decay rates $\beta = 0.9, 0.99, 0.999, \dots$; their scales are
    added, so that none has to be chosen. At the start, $m_0 = 10^{-6}$ and $\Delta_1 = v_0 = r_0 = s_1 = 0$. Use a base
    optimizer with a learning rate of 1, or with a schedule that warms up to 1; any will do, except those that normalize
    their steps by the parameters, such as LARS. In a chain, put `Mechanize` last.

    Both $x_1$ and $\Delta$ are stored in the state, so that training works for parameters in bfloat16, too: tiny steps
    are summed without being rounded away. optax computes $\Delta$ from the parameters, which saves one copy of them.

    Args:
        base_optimizer: base optimizer, which makes the steps $u_t$.
        weight_decay: coefficient $\lambda$ of a weight decay that affects the scale only, not the steps themselves.
        eps: $\varepsilon$, added to denominators.
        s_init: initial scale $s_{init}$. It grows exponentially, so that a value that is too small costs few steps.
        num_betas: number $n$ of decay rates.
        store_delta: whether to store $\Delta$. Otherwise it is $(x_t - x_1) / (\sum_i s_{t,i} + \varepsilon)$, as by
            default in the authors' code, and in optax. This saves a copy of the parameters, but steps of bfloat16
            parameters are lost to rounding.
        follow: which algorithm to use. `"reference"` is the authors' code, as above. `"paper"`
            has $x_t$ in place of $x_t + u_t$, and $m_0 = 0$, so that the first step leaves the parameters unchanged. In
            `"optax"`, moreover, $\Delta_t = (x_t - x_1) / (\sum_i s_{t,i} + \varepsilon)$, $\varepsilon$ is added to
            $|h_t|$, so that the first step has the scale $s_{init}$, the increment of the reward is clipped to $\pm s_t
            m_{t-1}$, and a negative reward is kept.

    References:
        Cutkosky, Defazio and Mehta, [Mechanic: A Learning Rate Tuner](https://arxiv.org/abs/2306.00144), 2023, and the
        authors' [code](https://github.com/optimizedlearning/mechanic).
    """

    base_optimizer: AbstractTransform = required_part(state="base_optimizer_state")
    weight_decay: Number = number(1e-2)
    eps: Number = number(1e-8)
    s_init: Number = number(1e-6)
    num_betas: int = eqx.field(static=True, default=6, metadata={"least": 1})
    _: dataclasses.KW_ONLY
    store_delta: bool = eqx.field(static=True, default=True)
    follow: FollowReference = followed("reference", "paper", "optax")

    needs: ClassVar[tuple[str, ...]] = ("params",)
    clock: ClassVar[Clock] = "steps"

    def check(self) -> None:
        refuse_examples("Mechanize", self.base_optimizer, "computes its scale from the gradients")

    def init(self, params: Params) -> MechanicState:
        """Return a copy of the parameters as the start, and the state of the base optimizer."""
        count = jnp.zeros((), jnp.int32)
        now = resolve(self, count)

        is_reference = self.follow == "reference"

        def zeros() -> Array:
            return jnp.zeros(self.num_betas, default_float())

        return MechanicState(
            base_optimizer_state=now.base_optimizer.init(params),
            count=count,
            r=zeros(),
            m=zeros() + (1e-6 if is_reference else 0.0),
            v=zeros(),
            s=zeros() if is_reference else zeros() + now.s_init,
            x0=jtu.tree_map(copy_in, params),
            delta=jtu.tree_map(lambda p: zeros_in(p, at_least_float32(p.dtype)), params) if self._stores else None,
        )

    def update(
        self, updates: Updates, state: MechanicState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MechanicState]:
        """Run one step of the base optimizer, and rescale the sum of all its steps."""
        now = resolve(self, state.count)
        # The steps are summed in at least float32, and must not be rounded to the dtype of the gradients before.
        steps, base_state = now.base_optimizer.update(widened(updates), state.base_optimizer_state, params, **extra)
        g, treedef = jtu.tree_flatten(updates)
        u, p = jtu.tree_leaves(steps), jtu.tree_leaves(params)
        starts, put_x0 = align(state.x0, updates, "Mechanize.update")
        # At the first step the given parameters are the start, in case weights were loaded after `init`.
        x0 = choose(state.count == 0, p, starts)
        scale = jnp.sum(state.s)
        if self._stores:
            delta, put_delta = align(state.delta, updates, "Mechanize.update")
        else:
            (delta,), put_delta = map_arithmetic(_travelled, scale + now.eps, (p, x0), [u]), lambda _: None
        x = [_sum(*xs) for xs in zip(p, u, strict=True)] if self.follow == "reference" else p
        r, m, v, s = now._tuned(state, _product(g, delta, x, now.weight_decay * scale, now.eps))

        def move(scale: Any, p: Array, x0: Array, delta: Array, u: Array) -> tuple[Array, ...]:
            delta = delta + u
            # In this order, because steps may be smaller than what the sum of x0 and a step rounds off.
            return (x0 - p) + scale * delta, delta

        out, delta = map_arithmetic(move, jnp.sum(s), (p, x0, delta, u), (g, delta))
        return treedef.unflatten(out), MechanicState(
            base_optimizer_state=base_state,
            count=safe_increment(state.count),
            r=r,
            m=m,
            v=v,
            s=s,
            x0=put_x0(x0),
            delta=put_delta(delta),
        )

    @property
    def _stores(self) -> bool:
        return self.store_delta and self.follow != "optax"

    def _tuned(self, state: MechanicState, h: Array) -> tuple[Array, ...]:
        """Return reward, largest product, sum of squares and scale, updated with the inner product of this step."""
        dtype = state.s.dtype
        eps, s_init, h = (jnp.asarray(x).astype(dtype) for x in (self.eps, self.s_init, h))
        betas = jnp.asarray([1 - 0.1 ** (i + 1) for i in range(self.num_betas)], dtype)
        v = betas**2 * state.v + h**2
        if self.follow != "optax":
            m = jnp.maximum(betas * state.m, jnp.abs(h))
            r = jnp.maximum(betas * state.r - state.s * h, 0)
        else:
            m = jnp.maximum(betas * state.m, jnp.abs(h) + eps)
            r = betas * state.r - state.s * jnp.clip(h, -state.m, state.m)
        s = (s_init / self.num_betas * m + jnp.maximum(r, 0)) / (safe_sqrt(v) + eps)
        return r, m, v, s


def _travelled(scale: Any, p: Array, x0: Array) -> list[Array]:
    return [(p - x0) / scale]


def _sum(p: Array, u: Array) -> Array:
    dtype = at_least_float32(p.dtype, u.dtype)
    return p.astype(dtype) + u.astype(dtype)


def _product(g: list[Array], delta: list[Array], p: list[Array], decay: Any, eps: Any) -> Array:
    """The inner product $h_t$ of displacement and decayed gradient; clipped if it is large, and 0 if it is NaN."""
    wide = [at_least_float32(*(x.dtype for x in xs)) for xs in zip(g, delta, p, strict=True)]
    g, delta, p = ([x.astype(dtype) for x, dtype in zip(xs, wide, strict=True)] for xs in (g, delta, p))
    size = norm(p)
    h = inner(g, delta) + decay * norm(g) * inner(p, delta) / (eps + size)
    limit = 1e-3 * np.sqrt(jnp.finfo(h.dtype).max)  # so that the sum of its squares stays finite
    return jnp.where(jnp.isnan(h), 0, jnp.clip(h, -limit, limit))
