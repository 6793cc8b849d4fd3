"""Gradient clipping: by value, by global norm, by the root mean square of an array, and relative to the weights."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Real

from .._protocol.fields import Number, number, required_number
from .._protocol.leafwise import AbstractLeafwise, StateT
from .._protocol.transform import EmptyState
from .._support.arithmetic import abs_sq, at_least_float32, common_dtype, mean, safe_increment, safe_sqrt
from .._support.checks import NEVER_NEGATIVE, NON_NEGATIVE
from .._support.module import AbstractState, shared
from .._support.types import Count, Shared
from ..tree._arithmetic import clip_entries
from ..tree._math import norm


class Clip(AbstractLeafwise):
    r"""Clips every entry to an interval (clipping by value): $u = \min(\max(g, -\Delta), \Delta)$.

    The real and imaginary parts of complex entries are clipped separately.

    Args:
        max_delta: largest absolute value $\Delta$ of an entry.
    """

    _keeps = "gradients"

    max_delta: Number = required_number(needs=NON_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        return clip_entries(g, -self.max_delta, self.max_delta), s


class Shrinking(NamedTuple):
    """The factor that clips an array, with flags for arrays that are kept or set to zero; see `shrinking`."""

    keeps: Bool[Array, "*batch"]
    erases: Bool[Array, "*batch"]
    factor: Real[Array, "*batch"]


def shrinking(bound: Any, total: Array) -> Shrinking:
    """The factor that reduces the norm `total` to `bound`: NaN for a NaN norm, and not used within the bound."""
    within = total <= bound
    # A NaN norm is not within the bound, so that the factor is NaN and the error stays visible.
    factor = bound / jnp.where(within, 1, total)
    return Shrinking(within, factor == 0, factor)


def shrunk(x: Array, by: Shrinking) -> Array:
    """The array times the factor, where a factor of zero turns infinities into zeros too.

    The array itself is chosen, not a factor of one: otherwise XLA fuses the products of all clips in a chain into each
    norm, and takes quadratic time to compile them.
    """
    scaled = by.factor.astype(x.dtype) * x
    return jax.lax.select(by.keeps, x, jax.lax.select(by.erases, jnp.zeros_like(x), scaled))


class Reduction(NamedTuple):
    """The factor that clips arrays with a joint norm, and whether they are set to zero instead; see `reduction`."""

    erases: Bool[Array, ""]
    factor: Real[Array, ""]


def reduction(bound: Any, total: Array) -> Reduction:
    """The factor that reduces the norm `total` to at most `bound`: 1 if it is within the bound, NaN for a NaN norm.

    If the norm is infinite or the bound is zero, the array is erased instead. Nothing is divided by zero, so that
    derivatives are finite. The factor is chosen last: XLA fuses that choice with the arrays. It is a factor and not a
    divisor because XLA:CPU stores the result of a division, and repeats a product for each reader, without memory.
    """
    one, zero = jnp.ones_like(total), jnp.zeros_like(total)
    bound = jnp.broadcast_to(bound, total.shape).astype(total.dtype)
    is_zero = bound == 0
    largest = jax.lax.select(is_zero, zero, jnp.maximum(bound, jnp.finfo(total.dtype).max))
    erases = total > largest
    keeps = (total <= bound) | erases
    total, bound = jax.lax.select(keeps, one, total), jax.lax.select(is_zero, one, bound)
    return Reduction(erases, jax.lax.select(keeps, one, bound / total))


def reduced(x: Array, by: Reduction) -> Array:
    """The array times the factor, or zeros, also in place of infinities.

    If many arrays share a norm, this compiles faster than `shrunk`; if each has its own, slower.
    """
    x = jax.lax.select(by.erases, jnp.zeros_like(x), x)
    factor = by.factor.astype(x.real.dtype)
    # A complex number entry by entry, which is exact where the factor is 1.
    return jax.lax.complex(x.real * factor, x.imag * factor) if jnp.iscomplexobj(x) else x * factor


class _Now(NamedTuple):
    """The factor of all arrays, and the shared fields of the state after the step."""

    by: Reduction
    after: dict[str, Array]


def clipped(state: Any, total: Array, bound: Any, recorded: dict[str, Array], is_recorded: Any) -> _Now:
    """Clip to the bound, count it, and store the norm, and what is recorded of norms that are finite."""
    after = {name: jnp.where(is_recorded, x, getattr(state, name)) for name, x in recorded.items()}
    after |= {"norm": total, "clipped": jnp.where(total > bound, safe_increment(state.clipped), state.clipped)}
    return _Now(reduction(bound, total), after)


class AbstractNormClip(AbstractLeafwise[StateT]):
    """Clips all arrays by their joint norm."""

    _keeps = "gradients"

    @abc.abstractmethod
    def survey(self, count, state, updates, params, **extra) -> _Now:
        """Return the factor and the new state, as `clipped` does."""

    def share(self, now):
        """Return the fields of the state after the step."""
        return now.after

    def update_leaf(self, now, g, s, p):
        """Return the clipped array."""
        del p
        return reduced(g, now.by), s


class ClipByGlobalNormState(AbstractState):
    """State of `ClipByGlobalNorm(..., logged=True)`: the last norm before clipping, and the number of clipped steps."""

    norm: Shared[Float[Array, ""]] = shared(None, starts=0.0, metric=True)
    clipped: Shared[Count] = shared(None, starts=0, metric=True)


class ClipByGlobalNorm(AbstractNormClip):
    r"""Clips the gradient by its global norm: scales all updates by one factor so that their joint norm is bounded.

    $$
    u = g \cdot \min(1, \Delta / \|g\|_2), \qquad \|g\|_2^2 = \sum_{\text{leaves}} \sum_i |g_i|^2
    $$

    The norm is computed in at least float32. Zero updates stay zero, even for a bound of zero. If the norm overflows,
    all updates become zero rather than NaN; a NaN in the updates stays visible.

    Args:
        max_norm: largest norm $\Delta$ of all updates together.
        logged: whether the state keeps the norm before clipping and the number of clipped steps, `norm` and `clipped`
            in `metrics`. By default there is no state, as in optax.

    References:
        Pascanu et al., [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063),
        2013.
    """

    max_norm: Number = required_number(needs=NON_NEGATIVE)
    logged: bool = eqx.field(static=True, default=False, kw_only=True)

    def init_leaf(self, p):
        del p
        return ClipByGlobalNormState() if self.logged else EmptyState()

    def survey(self, count, state, updates, params, **extra):
        del count, params, extra
        total = norm(updates)
        if not self.logged:
            return _Now(reduction(self.max_norm, total), {})
        return clipped(state, total, self.max_norm, {}, True)


def block_rms(x: Array) -> Array:
    """The root mean square of an array, differentiable at zero."""
    return safe_sqrt(mean(abs_sq(x)))


class ClipByBlockRMS(AbstractLeafwise):
    r"""Clips every array by its root mean square: scales it so that the root mean square is bounded.

    $$
    u = g \cdot \min(1, d / \operatorname{RMS}(g)), \qquad
        \operatorname{RMS}(g)^2 = \frac{1}{n} \sum_{i=1}^n |g_i|^2
    $$

    Zero updates stay zero, even for a bound of zero. If the mean square overflows, the update becomes zero.

    Args:
        threshold: largest root mean square $d$ of an array.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018, algorithm 4.
    """

    _keeps = "gradients"

    threshold: Number = required_number(needs=NEVER_NEGATIVE)

    def update_leaf(self, now, g, s, p):
        del now, p
        return shrunk(g, shrinking(self.threshold, block_rms(g))), s


class AdaptiveGradClip(AbstractLeafwise):
    r"""Adaptive gradient clipping (AGC): bounds the gradient norm of every unit relative to the norm of its weights.

    $$
    u_i = g_i \cdot \min\left(1, \lambda \frac{\max(\|w_i\|, \varepsilon)}{\|g_i\|}\right)
    $$

    A unit $i$ consists of all weights of one output, see `unitwise_norm`. Use it to train networks without batch
    normalization.

    Args:
        clipping: largest ratio $\lambda$ of gradient norm to weight norm.
        eps: $\varepsilon$, the smallest weight norm, without which zero weights would stay zero.
        axis: the axes of one unit; by default according to the number of axes, as in `unitwise_norm`.

    References:
        Brock et al., [High-Performance Large-Scale Image Recognition Without
        Normalization](https://arxiv.org/abs/2102.06171), 2021.
    """

    _keeps = "gradients"
    needs: ClassVar[tuple[str, ...]] = ("params",)

    clipping: Number = required_number(needs=NON_NEGATIVE)
    eps: Number = number(1e-3)
    axis: int | tuple[int, ...] | None = eqx.field(static=True, default=None)

    def update_leaf(self, now, g, s, p):
        del now
        # Without `eps`, the gradients of weights that are zero would be clipped to zero forever.
        largest = self.clipping * jnp.maximum(unitwise_norm(p, self.axis), self.eps)
        return unitwise_clip(unitwise_norm(g, self.axis), largest, g), s


def unitwise_norm(x: Inexact[Array, "*shape"], axis: int | tuple[int, ...] | None = None) -> Real[Array, "*shape"]:
    """Euclidean norm of every unit, broadcast to the shape of the array; in at least float32.

    Args:
        x: the array.
        axis: the axes of one unit. By default all axes of an array with at most one axis longer than 1, such as a
            scalar or a vector. The other defaults suit layouts with the outputs on the last axis: the first axis of
            arrays with two or three, all but the last of arrays with four or five.

    Raises:
        ValueError: if `axis` is None and the array has more than five axes.
    """
    if axis is None:
        axis = _axes_of_a_unit(x.shape)
    # The squares of float16 overflow above 255.
    squares = abs_sq(x.astype(at_least_float32(x.dtype)))
    return jnp.broadcast_to(safe_sqrt(jnp.sum(squares, axis=axis, keepdims=True)), x.shape)


def unitwise_clip(
    g_norm: Real[Array, "*shape"],
    max_norm: Real[Array, "*shape"],
    grad: Inexact[Array, "*shape"],
    div_eps: Any = 1e-6,
) -> Inexact[Array, "*shape"]:
    """Scales the gradient of every unit whose norm exceeds the bound down to the bound.

    Args:
        g_norm: norm of each unit of the gradient, as returned by `unitwise_norm`.
        max_norm: largest norm of each unit.
        grad: the gradient; the result has its dtype.
        div_eps: smallest number to divide by.
    """
    dtype = common_dtype(g_norm.dtype, max_norm.dtype)
    g_norm, max_norm = g_norm.astype(dtype), max_norm.astype(dtype)
    wide = common_dtype(grad.dtype, dtype)
    factor = (max_norm / jnp.maximum(g_norm, jnp.asarray(div_eps, dtype))).astype(wide)
    x = grad.astype(wide)
    reduced = x * factor
    # Gradients and norms may be sharded differently, a choice needs equal shardings: those of a product. XLA removes
    # the neutral elements. A product with the chosen factor would compile in quadratic time, as in `shrunk`.
    within = (g_norm < max_norm) | jnp.zeros_like(reduced, bool)
    return jax.lax.select(within, x * jnp.ones_like(factor), reduced).astype(grad.dtype)


def _axes_of_a_unit(shape: tuple[int, ...]) -> tuple[int, ...]:
    rank = len(shape)
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(rank))
    if rank <= 3:
        return (0,)
    if rank <= 5:
        return tuple(range(rank - 1))
    raise ValueError(
        f"`unitwise_norm` has default axes for arrays with up to 5 axes only, got the shape {shape}. Pass the axes of "
        "one unit: `unitwise_norm(x, axis=(0, 1))` or `AdaptiveGradClip(clipping, axis=(0, 1))`."
    )
