"""Apollo: the gradient, scaled by factors that Adam would have in a low-rank projection."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import real_dtype
from .._support.checks import AT_LEAST_ONE
from .._support.keys import key, next_keys
from .._transforms.decayed_step import DecayedStep
from .._transforms.matrices import matrices_as
from .._transforms.outer_products import norm
from .galore import AbstractLowRank, GaLoreDimensionNumbers

METHODS = ("random", "svd", "range")
SCALES = ("channel", "tensor")
_LEAST = 1e-8  # added to norms that are divided by


class ApolloState(ma.AbstractState):
    """State of `ScaleByApollo`: moments, projectors, norms of the last updates, key of the next projectors, step count.

    The moments of a matrix are those of its projection. `projector` and `norm` are None for leaves that aren't
    matrices.
    """

    mu: ma.PyTree = ma.like_params(per_matrix=True)
    nu: ma.PyTree = ma.like_params(nonnegative=True, per_matrix=True)
    projector: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    norm: ma.PyTree = ma.like_params(exact=True, per_matrix=True)
    key: ma.Shared[ma.Array] = ma.shared(None)
    count: ma.Shared[ma.Count] = ma.shared(None)


class _Now(NamedTuple):
    """The factor of all updates, and the key of the next projectors."""

    scale: ma.Array
    key: Any = None


class AbstractApolloRank(ma.AbstractFields):
    r"""The hyperparameters of Apollo that are constants of Apollo-Mini.

    Args:
        rank: rank $r$ of the projection, at most the length of the smaller side. The authors take a quarter of it.
        scale_type: `"channel"` for a factor of each channel, or `"tensor"` for one of each matrix.
    """

    rank: int = ma.static(256, least=1)
    _: ma.KW_ONLY
    scale_type: str = ma.choice(SCALES, "channel")


class AbstractApollo(ma.AbstractFields):
    r"""The hyperparameters of Apollo and Apollo-Mini.

    Args:
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded; the authors recommend it for
            `ApolloMini` where the warm-up is short.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.
    """

    update_proj_gap: ma.Number = ma.number(200, needs=ma.WHOLE)
    scale: ma.Number = ma.number(1.0, needs=ma.NON_NEGATIVE)
    b1: ma.Number = ma.number(0.9, needs=ma.DECAY)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-6)
    _: ma.KW_ONLY
    method: str = ma.choice(METHODS, "random")
    max_growth: ma.OptionalNumber = ma.number(1.01, needs=AT_LEAST_ONE, optional=True)
    scale_front: bool = ma.static(False)
    correct_bias: bool = ma.static(True)
    weight_dimension_numbers: Any = ma.static(None, converter=matrices_as(GaLoreDimensionNumbers))
    key: Any = key()


class ScaleByApollo(AbstractApollo, AbstractApolloRank, AbstractLowRank[ApolloState]):
    r"""Scales the gradient of every matrix as Adam scales its low-rank projection: the direction of Apollo.

    $$
    \begin{aligned}
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad s_j = \|d_{t, j}\| / (\|R_{t, j}\| + 10^{-8}) \\
    \hat u_{t, ij} &= s_j\, g_{t, ij}, \qquad
        \bar u_t = \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    u_t &= \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns $j$; if there are more rows, the columns are projected, and each
    row has a factor. With `scale_type="tensor"`, the norms are those of whole matrices, and there is one factor. The
    bound of the growth does not apply to the first update, nor to one after an update of zero.

    The entries of $P$ are normal with a variance of $1 / r$, and drawn again every `update_proj_gap` steps; the moments
    stay. Leaves that aren't matrices have the direction of Adam, with $\varepsilon$ added before the bias correction.

    Args:
        rank: rank $r$ of the projection, at most the length of the smaller side. The authors take a quarter of it.
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        scale_type: `"channel"` for a factor of each channel, or `"tensor"` for one of each matrix.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded; the authors recommend it for
            `ApolloMini` where the warm-up is short.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    improved: ClassVar = ("projector", "key")
    others: ClassVar = "array"

    def init_matrix(self, x):
        projector = jnp.zeros(self.projector_shape(x.shape), x.dtype)
        mu = jnp.zeros(jax.eval_shape(self.down, x, projector).shape, x.dtype)
        nu = ma.second_moment_like(mu)
        return ApolloState(mu, nu, projector, jnp.zeros(x.shape[:-2], nu.dtype))

    def init_other(self, x):
        return ApolloState(jnp.zeros_like(x), ma.second_moment_like(x), None, None)

    def init_shared(self, params):
        del params
        return {"key": jnp.array(self.key, copy=True)}

    def prepare(self, count):
        t = count + 1
        scale = ma.safe_sqrt(ma.bias(self.b2, t)) / ma.bias(self.b1, t)
        return _Now(scale if self.correct_bias else jnp.ones_like(scale))

    def improve_matrix(self, now, g, s):
        return s if self.method == "random" else super().improve_matrix(now, g, s)

    def update_matrix(self, now, g, s, p):
        del p
        low = g if s.projector is None else self.down(g, s.projector)
        mu, nu = ma.moment(self.b1, s.mu, low), ma.moment(self.b2, s.nu, ma.abs_sq(low))
        u, size = mu / (self.eps + ma.safe_sqrt(nu)), s.norm
        if size is not None:
            u, size = self._scaled(g, low, u, size)
        return now.scale * u, dataclasses.replace(s, mu=mu, nu=nu, norm=size)

    def _scaled(self, g: ma.Array, low: ma.Array, d: ma.Array, last: ma.Array) -> tuple[ma.Array, ma.Array]:
        """Scaled gradients, and their norms before the last factor, given what Adam does in the projection."""
        axes: Any = (-2, -1) if self.scale_type == "tensor" else -2 if self.projects_rows(g.shape) else -1
        root = ma.safe_sqrt(self.scale)
        u = norm(d, axes) / (_LEAST + norm(low, axes)) * g
        u = root * u if self.scale_front else u
        size = norm(u)
        if self.max_growth is not None:
            last = last[..., None, None]
            most = jnp.where(last > 0, self.max_growth * (_LEAST + last), size)
            shrinkage = jnp.minimum(1, most / jnp.where(size > 0, size, 1))
            u, size = shrinkage * u, shrinkage * size
        return u if self.scale_front else root * u, size[..., 0, 0]

    def _draw(self, now, state, gs, states):
        if self.method != "random":
            return super()._draw(now._replace(key=state.key), state, gs, states)
        key, drawn = standard_normal(state.key, [s.projector for s in states])
        projectors = [x / x.shape[-1] ** 0.5 for x in drawn]
        states = [dataclasses.replace(s, projector=x) for s, x in zip(states, projectors, strict=True)]
        return now._replace(key=key), [None] * len(gs), states


def standard_normal(raw: ma.Array, like: Sequence[ma.Array]) -> tuple[ma.Array, list[ma.Array]]:
    """Return the next key data, and standard normal numbers in the shapes of arrays, in at least float32."""
    kept, keys = next_keys(raw, len(like))
    dtypes = [ma.at_least_float32(real_dtype(x.dtype)) for x in like]
    return kept, [jax.random.normal(k, x.shape, d) for k, x, d in zip(keys, like, dtypes, strict=True)]


class Apollo(ma.AbstractDecayed, AbstractApollo, AbstractApolloRank, ma.AbstractRated):
    r"""AdamW with the memory of SGD: scales each channel of a gradient as Adam scales its random projection.

        optimizer = Apollo(1e-2, rank=256)

    $$
    \begin{aligned}
    R_t &= P_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) R_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |R_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad s_j = \|d_{t, j}\| / (\|R_{t, j}\| + 10^{-8}) \\
    \hat u_{t, ij} &= s_j\, g_{t, ij}, \qquad
        \bar u_t = \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t
        - \eta \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t \right)
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns $j$, with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. If
    there are more rows, the columns are projected, and each row has a factor. The entries of $P$ are normal with a
    variance of $1 / r$, and drawn again every `update_proj_gap` steps. Parameters that aren't matrices are trained by
    Adam, with $\varepsilon$ added before the bias correction.

    `ApolloMini` has a projection of rank 1.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        rank: rank $r$ of the projection, at most the length of the smaller side. The authors take a quarter of it.
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        scale_type: `"channel"` for a factor of each channel, or `"tensor"` for one of each matrix.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded; the authors recommend it for
            `ApolloMini` where the warm-up is short.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    direction = ScaleByApollo
    learning_rate: ma.Number = ma.number(1e-3)

    def transform(self) -> ma.Chain:
        return ma.Chain(*self.directions(), self._part(DecayedStep, after=True))


class ApolloMini(ma.AbstractDecayed, AbstractApollo, ma.AbstractRated):
    r"""Apollo with a projection of rank 1: one factor for each matrix, and hardly any state.

        optimizer = ApolloMini(1e-2)

    $$
    \begin{aligned}
    r_t &= p_t^\top g_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) r_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |r_t|^2 \\
    d_t &= m_t / (\sqrt{v_t} + \varepsilon), \qquad \hat u_t = g_t \|d_t\| / (\|r_t\| + 10^{-8}) \\
    \bar u_t &= \hat u_t / \max(1, \|\hat u_t\| / (\gamma (\|\bar u_{t-1}\| + 10^{-8}))) \\
    w_{t+1} &= (1 - \eta \lambda) \left( w_t
        - \eta \sqrt \alpha\, \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}\, \bar u_t \right)
    \end{aligned}
    $$

    for a matrix with at most as many rows as columns, with $g_t$ the gradient at $w_t$ and $m_0 = v_0 = 0$. If there
    are more rows, the columns are projected. The entries of the vector $p$ are standard normal, and drawn again every
    `update_proj_gap` steps. It is `Apollo(rank=1, scale_type="tensor", scale=128.0)`. Parameters that aren't matrices
    are trained by Adam.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        update_proj_gap: number of steps between two computations of the projectors.
        scale: $\alpha$, of which the root multiplies the updates of matrices.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the root of the uncorrected second moment.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        method: `"random"`; or `"svd"` for singular vectors of the gradient, or `"range"`, as in `ScaleByGaLore`.
        max_growth: $\gamma$, by which the norm of an update may exceed that of the last one; None for no bound.
        scale_front: whether $\sqrt \alpha$ multiplies before the growth is bounded; the authors recommend it for
            `ApolloMini` where the warm-up is short.
        correct_bias: whether to multiply by $\sqrt{1 - \beta_2^t} / (1 - \beta_1^t)$.
        weight_dimension_numbers: which parameters are matrices, as in `ScaleByGaLore`; by default their roles tell.
        key: a seed, or a JAX key, for the projectors.

    References:
        Zhu et al., [APOLLO: SGD-like Memory, AdamW-level Performance](https://arxiv.org/abs/2412.05270), 2024, and the
        authors' [code](https://github.com/zhuhanqing/APOLLO).
    """

    direction = ScaleByApollo
    rank: ClassVar[int] = 1
    scale_type: ClassVar[str] = "tensor"
    learning_rate: ma.Number = ma.number(1e-3)
    scale: ma.Number = ma.number(128.0, needs=ma.NON_NEGATIVE)

    def transform(self) -> ma.Chain:
        return ma.Chain(*self.directions(), self._part(DecayedStep, after=True))
