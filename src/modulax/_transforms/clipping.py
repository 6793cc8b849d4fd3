"""Bounds on the size of the updates: of every entry, of a unit, of an array, or of all of them together."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Real

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, common_dtype, safe_sqrt
from .._support.checks import NON_NEGATIVE
from ..tree._arithmetic import clip_entries
from ..tree._math import norm
from .param_block import block_rms


class Clip(AbstractLeafwise):
    r"""Clips every entry to an interval: $u = \min(\max(g, -\Delta), \Delta)$.

    Of a complex entry the real and the imaginary part are clipped, each by itself.

    Args:
        max_delta: the bound $\Delta$.
    """

    max_delta: Number = number(needs=NON_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        return clip_entries(g, -self.max_delta, self.max_delta), s


def factor_within(bound: Any, total: Array) -> Array:
    """What something of norm `total` is multiplied by so that its norm is at most `bound`; NaN for NaN."""
    exceeds = total > bound
    factor = jnp.where(exceeds, bound / jnp.where(exceeds, total, 1), 1)
    return jnp.where(jnp.isnan(total), total, factor)


def scaled_down(x: Array, factor: Array) -> Array:
    """The array times the factor, where a factor of zero makes zero of an infinity too."""
    return jnp.where(factor == 0, jnp.zeros_like(x), factor * x)


class ClipByGlobalNorm(AbstractLeafwise):
    r"""Scales all updates together so that their norm is at most a given one.

    $$
    u = g \cdot \min(1, \Delta / \|g\|_2), \qquad \|g\|_2^2 = \sum_{\text{leaves}} \sum_i |g_i|^2
    $$

    The norm is accumulated in at least float32. Zero updates stay zero, also for a bound of zero. Where the norm
    overflows the update is zero, so that no NaN is made of an infinity; a NaN stays visible.

    Args:
        max_norm: the bound $\Delta$.

    References:
        Pascanu et al., [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063),
        2013.
    """

    cites: ClassVar[tuple[str, ...]] = ("pascanu2013",)

    max_norm: Number = number(needs=NON_NEGATIVE)

    def survey(self, count, state, updates, params, **extra):
        del count, state, params, extra
        return factor_within(self.max_norm, norm(updates))

    def update_leaf(self, now, g, s, p):
        del p
        return scaled_down(g, now), s


class ClipByBlockRMS(AbstractLeafwise):
    r"""Scales every array so that the root of its mean square is at most a given one.

    $$
    u = g \cdot \min(1, d / \operatorname{RMS}(g)), \qquad
        \operatorname{RMS}(g)^2 = \frac{1}{n} \sum_{i=1}^n |g_i|^2
    $$

    Zero updates stay zero, also for a bound of zero. Where the mean square overflows the update is zero.

    Args:
        threshold: the bound $d$.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018, algorithm 4.
    """

    cites: ClassVar[tuple[str, ...]] = ("shazeer2018",)

    threshold: Number = number(needs=NON_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        return scaled_down(g, factor_within(self.threshold, block_rms(g))), s


class AdaptiveGradClip(AbstractLeafwise):
    r"""Clips the gradient of every unit to a fraction of the norm of its weights.

    $$
    u_i = g_i \cdot \min\left(1, \lambda \frac{\max(\|w_i\|, \varepsilon)}{\|g_i\|}\right)
    $$

    A unit $i$ is what belongs to one output, see `unitwise_norm`.

    Args:
        clipping: the largest ratio $\lambda$ of the two norms.
        eps: $\varepsilon$, without which weights that are zero would stay so.
        axis: the axes of one unit; by default by the number of axes, as in `unitwise_norm`.

    References:
        Brock et al., [High-Performance Large-Scale Image Recognition Without
        Normalization](https://arxiv.org/abs/2102.06171), 2021.
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)
    cites: ClassVar[tuple[str, ...]] = ("brock2021",)

    clipping: Number = number(needs=NON_NEGATIVE)
    eps: Number = number(1e-3)
    axis: int | tuple[int, ...] | None = eqx.field(static=True, default=None)

    def update_leaf(self, now, g, s, p):
        del now
        largest = self.clipping * jnp.maximum(unitwise_norm(p, self.axis), self.eps)
        return unitwise_clip(unitwise_norm(g, self.axis), largest, g), s


def unitwise_norm(x: Inexact[Array, "*shape"], axis: int | tuple[int, ...] | None = None) -> Real[Array, "*shape"]:
    """The Euclidean norm of every unit, at each of its entries; in at least float32.

    Args:
        x: the array.
        axis: the axes of one unit. By default all of a scalar or a vector, and otherwise, for layouts whose last axis
            is the output: the first axis of two or three, all but the last of four or five.
    """
    if axis is None:
        axis = _axes_of_a_unit(x.shape)
    squares = abs_sq(x.astype(at_least_float32(x.dtype)))
    return jnp.broadcast_to(safe_sqrt(jnp.sum(squares, axis=axis, keepdims=True)), x.shape)


def unitwise_clip(
    g_norm: Real[Array, "*shape"],
    max_norm: Real[Array, "*shape"],
    grad: Inexact[Array, "*shape"],
    div_eps: Any = 1e-6,
) -> Inexact[Array, "*shape"]:
    """The gradient, scaled down to the largest norm wherever its unit exceeds it.

    Args:
        g_norm: the norm of each unit of the gradient, as `unitwise_norm` returns it.
        max_norm: the largest norm that each may have.
        grad: the gradient, whose dtype the result has.
        div_eps: the least number to divide by.
    """
    dtype = common_dtype(g_norm.dtype, max_norm.dtype)
    g_norm, max_norm = g_norm.astype(dtype), max_norm.astype(dtype)
    factor = max_norm / jnp.maximum(g_norm, jnp.asarray(div_eps, dtype))
    clipped = grad.astype(common_dtype(grad.dtype, dtype)) * factor.astype(common_dtype(grad.dtype, dtype))
    return jnp.where(g_norm < max_norm, grad, clipped.astype(grad.dtype))


def _axes_of_a_unit(shape: tuple[int, ...]) -> tuple[int, ...]:
    rank = len(shape)
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(rank))
    if rank <= 3:
        return (0,)
    if rank <= 5:
        return tuple(range(rank - 1))
    raise ValueError(
        f"`unitwise_norm` knows the units of arrays with up to 5 axes, got the shape {shape}. Say which axes belong "
        "to one unit: `unitwise_norm(x, axis=(0, 1))` or `AdaptiveGradClip(clipping, axis=(0, 1))`."
    )
