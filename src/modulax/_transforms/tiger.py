"""Tiger: steps by the sign of a momentum, relative to the size of the parameters."""

import dataclasses
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import DTypeLike, PyTree

from .._protocol.fields import Number, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import AbstractLabels
from .._roles.find import AbstractRoles
from .._roles.role import AbstractRole
from .._support.arithmetic import abs_sq, mean, safe_sqrt, zeros_in
from .._support.checks import DECAY, WHOLE
from .._support.module import AbstractState, counter, like_params
from .._support.placement import typed_like
from .._support.types import Count, Shared
from .param_block import block_rms
from .regularization import decayed


class ScaleByTigerState(AbstractState):
    """State of `ScaleByTiger`: step count and momentum."""

    mu: PyTree = like_params(moment=1.0)
    count: Shared[Count] = counter()


class ScaleByTiger(AbstractLeafwise[ScaleByTigerState]):
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
        weight_decay: weight decay coefficient $\lambda$.
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

    needs: ClassVar[tuple[str, ...]] = ("params",)
    _negates: ClassVar[bool] = True

    learning_rate: Number = required_number()
    beta: Number = number(0.965, needs=DECAY)
    weight_decay: Number = number(0.01)
    scale: Number = number(1.0)
    every_k: Number = number(1, needs=WHOLE)
    shrink_ratio: Number = number(0.99)
    center: Number = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    relative: Literal["array", "rows", "none"] = eqx.field(static=True, default="array")

    def init_leaf(self, p):
        return ScaleByTigerState(mu=zeros_in(p, self.mu_dtype))

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
            rate = rate * safe_sqrt(mean(abs_sq(p), axis=-1 if p.ndim else None, keepdims=True))
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

    def labels(self, tree: PyTree, *, partial: bool = False) -> list[str]:
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
