"""Tiger: steps by the sign of a momentum, relative to the size of the parameters."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import authoring as ma
from .._containers.partition import Partition
from .._protocol.masks import AbstractLabels
from .._roles.find import AbstractRoles, as_roles
from .._roles.role import AbstractRole
from .._support.arithmetic import mean
from .._support.placement import typed_like
from .._transforms.clipping import block_rms
from .._transforms.regularization import decayed


class ScaleByTigerState(ma.AbstractState):
    """State of `ScaleByTiger`: step count and momentum."""

    mu: ma.PyTree = ma.like_params(moment=1.0)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractTiger(ma.AbstractFields):
    r"""The hyperparameters that Tiger and its step share in the same places.

    Args:
        learning_rate: learning rate $\eta$, relative to the size of the parameters, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
    """

    learning_rate: ma.Number = ma.required_number()
    beta: ma.Number = ma.number(0.965, needs=ma.DECAY)
    weight_decay: ma.Number = ma.number(0.01)


class ScaleByTiger(AbstractTiger, ma.AbstractLeafwise[ScaleByTigerState]):
    r"""Steps by the sign of a momentum, in proportion to the size of the parameters: the step of Tiger.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    u_t &= -\eta\, \rho \operatorname{RMS}(w_t) (\operatorname{sign}(m_t) + \lambda w_t)
    \end{aligned}
    $$

    The result is the full step, including learning rate and sign. If an entry of $g_t$ is not finite, the momentum does
    not change, and the parameters are shrunk instead: $u_t = (r - 1) (w_t - c)$, with $r$ of `shrink_ratio`.

    With `every_k` of $k$, the gradients of $k$ steps are averaged in the momentum itself, which decays at the first of
    them; the last one moves the parameters. So the accumulation needs no memory, in contrast to `MultiSteps`.

    Args:
        learning_rate: learning rate $\eta$, relative to the size of the parameters, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        scale: factor $\rho$ of the steps.
        every_k: number of steps whose gradients are averaged.
        shrink_ratio: factor of the parameters in a step whose gradient is not finite.
        center: the value $c$ to which they are shrunk.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        relative: the root mean square is that of an `"array"`, or of each of its `"rows"`, along the last axis; with
            `"none"` it is replaced by 1.

    References:
        Su, [Tiger: A Tight-fisted Optimizer](https://github.com/bojone/tiger), 2023.
    """

    needs = ("params",)
    _negates = True

    scale: ma.Number = ma.number(1.0)
    every_k: ma.Number = ma.number(1, needs=ma.WHOLE)
    shrink_ratio: ma.Number = ma.number(0.99)
    center: ma.Number = ma.number(0.0)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    relative: Literal["array", "rows", "none"] = ma.static("array")

    def init_leaf(self, p):
        return ScaleByTigerState(mu=ma.zeros_in(p, self.mu_dtype))

    def _prepare(self, count, state):
        del count
        # In integers, because float32 counts exactly to 2**24 only.
        k = jnp.asarray(self.every_k).astype(state.count.dtype)
        place = state.count % k
        rate = jnp.where(place == k - 1, self.scale * self.learning_rate, 0)
        return jnp.where(place == 0, self.beta, 1), (1 - self.beta) / self.every_k, rate

    def update_leaf(self, now, g, s, p):
        decay, weight, rate = now
        is_finite = jnp.all(jnp.isfinite(g))
        mu = jnp.where(is_finite, decay * s.mu + weight * jnp.where(is_finite, g, 0), s.mu)
        if self.relative == "array":
            rate = rate * block_rms(p)
        elif self.relative == "rows":  # a scalar has none
            rate = rate * ma.safe_sqrt(mean(ma.abs_sq(p), axis=-1 if p.ndim else None, keepdims=True))
        step = -rate * (jnp.sign(mu) + decayed(self.weight_decay, p))
        shrinking = typed_like((self.shrink_ratio - 1) * (p - self.center), step)
        return jnp.where(is_finite, step, shrinking), ScaleByTigerState(mu=mu)


@dataclasses.dataclass(frozen=True)
class TigerLabels(AbstractLabels):
    """Labels of the four kinds of parameters that Tiger tells apart.

    Args:
        roles: the roles of the parameters.
    """

    roles: AbstractRoles

    def labels(self, tree: ma.PyTree, *, partial: bool = False) -> list[str]:
        del partial
        leaves = jtu.tree_leaves(tree)
        return [_label(role, x.ndim) for role, x in zip(self.roles.labels(tree), leaves, strict=True)]

    def bound(self, find: Any) -> AbstractLabels:
        return dataclasses.replace(self, roles=self.roles.bound(find))


def _label(role: AbstractRole, ndim: int) -> str:
    if role.kind == "gain":
        return "gains"
    if role.kind in ("embedding", "position") and ndim > 1:
        return "embeddings"
    return "vectors" if role.is_vector or ndim < 2 else "matrices"


class Tiger(AbstractTiger, ma.AbstractOptimizer):
    r"""Sign-based momentum with steps relative to the parameters, which accumulates gradients without a buffer.

        optimizer = Tiger(1e-3, every_k=4)

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    w_{t+1} &= w_t - \eta \operatorname{RMS}(w_t) (\operatorname{sign}(m_t) + \lambda w_t)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $m_0 = 0$. The root mean square is that of each array, and of each row of
    embeddings. For biases, gains and other vectors, it is replaced by $\rho$, and they don't decay. A matrix of zeros
    doesn't move.

    An array whose gradient is not finite is shrunk by a factor instead, a gain towards 1. With `every_k` of $k$, the
    momentum accumulates the gradients of $k$ steps, and the last one moves the parameters; see `ScaleByTiger`. The
    kinds of parameters follow from the names of layers; pass `roles` for other names.

    Args:
        learning_rate: learning rate $\eta$, relative to the size of the parameters, a number or a schedule.
        beta: exponential decay rate $\beta$ of the momentum.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        vector_scale: $\rho$, the factor of the learning rate for biases, gains and other vectors.
        every_k: number of steps whose gradients are averaged.
        shrink_ratio: factor of an array whose gradient is not finite.
        mu_dtype: dtype of the momentum; by default that of the parameters.
        roles: roles of parameters for which they are not found, or found wrongly: a mapping from patterns to roles, or
            the result of `roles(model)`.

    References:
        Su, [Tiger: A Tight-fisted Optimizer](https://github.com/bojone/tiger), 2023.
    """

    learning_rate: ma.Number = ma.number(1e-3)
    vector_scale: ma.Number = ma.number(0.5)
    every_k: ma.Number = ma.number(1, needs=ma.WHOLE)
    shrink_ratio: ma.Number = ma.number(0.99)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    roles: Any = eqx.field(
        static=True, default=None, converter=as_roles, kw_only=True, metadata={"head_is_like_others": True}
    )

    def transform(self) -> Partition:
        vectors: dict[str, Any] = {"scale": self.vector_scale, "weight_decay": 0.0, "relative": "none"}
        groups = {
            "matrices": self._part(ScaleByTiger),
            "embeddings": self._part(ScaleByTiger, relative="rows"),
            "vectors": self._part(ScaleByTiger, **vectors),
            "gains": self._part(ScaleByTiger, **vectors, center=1.0),
        }
        return Partition(groups, TigerLabels(self.roles))
