"""Gradient clipping with a bound that follows the norms of the last steps: ZClip and AutoClip.

Norms that overflow, and NaN, are not recorded: they would stay in the mean. If the norm overflows, the gradient is
erased; a NaN stays visible, as in `ClipByGlobalNorm`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._protocol.fields import Number, number
from .._support.arithmetic import default_float, moment, safe_increment, safe_sqrt
from .._support.checks import DECAY, NON_NEGATIVE, POSITIVE, Requirement
from .._support.module import AbstractState, counter, shared
from .._support.types import Count, Shared
from ..tree._math import norm
from .clipping import AbstractNormClip, clipped

# A window has the last values of a number in the order of time: the newest is last, and the first ones may still be
# absent. That makes a state readable, and shifting a few hundred values costs nothing beside a step.


def pushed(window: Float[Array, " size"], x: Float[Array, ""]) -> Float[Array, " size"]:
    """The window with one more value at its end, without its first one."""
    return jnp.concatenate([window[1:], x[None]])


def present(window: Float[Array, " size"], count: Int[Array, ""]) -> Bool[Array, " size"]:
    """Which places of the window hold a value, after `count` values."""
    size = window.shape[0]
    return jnp.arange(size, dtype=count.dtype) >= size - count


_PERCENTAGE = Requirement(lambda x: (x >= 0) & (x <= 100), "must be in [0, 100]")


class ClipByRunningNormState(AbstractState):
    """State of `ClipByRunningNorm`.

    `norm` is the last norm before clipping, `clipped` the number of clipped steps, `mean` and `variance` are those of
    the norms, of which `seen` were recorded.
    """

    norm: Shared[Float[Array, ""]] = shared(None, starts=0.0, metric=True)
    clipped: Shared[Count] = shared(None, starts=0, metric=True)
    mean: Shared[Float[Array, ""]] = shared(None, starts=0.0)
    variance: Shared[Float[Array, ""]] = shared(None, starts=0.0)
    seen: Shared[Count] = shared(None, starts=0)
    count: Shared[Count] = counter()


class ClipByRunningNorm(AbstractNormClip[ClipByRunningNormState]):
    r"""Adaptive gradient clipping by the running mean of the gradient norm (ZClip): reduces norms that are outliers.

        Chain(ClipByRunningNorm(), AdamW(1e-3))

    A norm is an outlier if its z-score exceeds a threshold. It is then reduced towards the mean; larger norms are
    reduced more:

    $$
    z_t = \frac{\|g_t\| - \mu}{\sigma + \varepsilon}, \qquad
    \Delta_t = \mu + \frac{\hat z}{z_t}\, \hat z \sigma \ \text{ if } z_t > \hat z, \qquad
    u_t = g_t \cdot \min(1, \Delta_t / \|g_t\|)
    $$

    $\mu$ and $\sigma^2$ are the mean and the variance of the first `warmup_steps` norms, which are not clipped, and
    exponential moving averages after that: with $x$ the norm after clipping, $\mu \leftarrow \alpha \mu + (1 - \alpha)
    x$ and then $\sigma^2 \leftarrow \alpha \sigma^2 + (1 - \alpha) (x - \mu)^2$. The authors also bound the norm by 1:
    `Chain(ClipByRunningNorm(), ClipByGlobalNorm(1.0), ...)`.

    Zero updates stay zero. If the norm overflows, all updates become zero rather than NaN; a NaN in the updates stays
    visible. Neither enters the mean.

    Args:
        z_threshold: $\hat z$, the z-score above which a norm is an outlier.
        decay: $\alpha$, the exponential decay rate of mean and variance.
        warmup_steps: number of norms whose mean and variance start the averages.
        eps: $\varepsilon$, added to the standard deviation.

    References:
        Kumar et al., [ZClip: Adaptive Spike Mitigation for LLM Pre-Training](https://arxiv.org/abs/2504.02507), 2025.
    """

    z_threshold: Number = number(2.5, needs=POSITIVE)
    decay: Number = number(0.97, needs=DECAY)
    warmup_steps: Number = number(25, needs=NON_NEGATIVE)
    eps: Number = number(1e-6, needs=NON_NEGATIVE)

    def init_leaf(self, p):
        del p
        return ClipByRunningNormState()

    def survey(self, count, state, updates, params, **extra):
        del count, params, extra
        total = norm(updates)
        n = state.seen.astype(total.dtype)
        deviation = self.eps + safe_sqrt(state.variance)
        excess = total - state.mean
        is_early = n < jnp.maximum(self.warmup_steps, 1)
        is_outlier = jnp.logical_not(is_early) & (excess > self.z_threshold * deviation)
        # The inverse of the z-score, because equal norms and an `eps` of zero make the deviation zero.
        inverse_z = deviation / jnp.where(is_outlier, excess, 1)
        reduced = state.mean + self.z_threshold**2 * inverse_z * safe_sqrt(state.variance)
        x = jnp.where(is_outlier, reduced, total)
        # Welford's recursion: a mean of squares minus the square of the mean would cancel.
        first_mean = state.mean + excess / (n + 1)
        first_variance = state.variance + (excess * (total - first_mean) - state.variance) / (n + 1)
        mean = moment(self.decay, state.mean, x)
        variance = moment(self.decay, state.variance, (x - mean) ** 2)
        statistics = {
            "mean": jnp.where(is_early, first_mean, mean),
            "variance": jnp.where(is_early, first_variance, variance),
            "seen": safe_increment(state.seen),
        }
        # The largest finite number is no bound for finite norms, and `reduction` erases an array of infinite norm.
        bound = jnp.where(is_outlier, reduced, jnp.finfo(total.dtype).max)
        return clipped(state, total, bound, statistics, jnp.isfinite(total))


class ClipByNormPercentileState(AbstractState):
    """State of `ClipByNormPercentile`.

    `norm` is the last norm before clipping, `clipped` the number of clipped steps, `window` holds the last norms, the
    newest at the end, and `seen` is the number of norms so far.
    """

    norm: Shared[Float[Array, ""]] = shared(None, starts=0.0, metric=True)
    clipped: Shared[Count] = shared(None, starts=0, metric=True)
    window: Shared[Float[Array, " window"]] = shared(None)
    seen: Shared[Count] = shared(None, starts=0)
    count: Shared[Count] = counter()


class ClipByNormPercentile(AbstractNormClip[ClipByNormPercentileState]):
    r"""Adaptive gradient clipping by a percentile of the norms so far (AutoClip).

        Chain(ClipByNormPercentile(10.0), Adam(1e-3))

    The bound is the percentile $p$ of the norms of the last steps and of this one, with linear interpolation:

    $$
    u_t = g_t \cdot \min(1, \Delta_t / \|g_t\|), \qquad
    \Delta_t = \operatorname{percentile}_p(\|g_{t-n+1}\|, \dots, \|g_t\|)
    $$

    With a small percentile, almost every gradient is clipped, and the step size hardly depends on the norm. The authors
    keep all norms; the window bounds the memory, and the time of the sort in each step.

    If the norm overflows, all updates become zero rather than NaN; a NaN in the updates stays visible. Neither enters
    the window.

    Args:
        percentile: $p$, from 0 to 100.
        window: number $n$ of norms to keep.

    References:
        Seetharaman et al., [AutoClip: Adaptive Gradient Clipping for Source Separation
        Networks](https://arxiv.org/abs/2007.14469), 2020.
    """

    percentile: Number = number(10.0, needs=_PERCENTAGE)
    window: int = eqx.field(static=True, default=1000, metadata={"least": 1})

    def init_leaf(self, p):
        del p
        return ClipByNormPercentileState()

    def init_shared(self, params):
        del params
        return {"window": jnp.zeros(self.window, default_float())}

    def survey(self, count, state, updates, params, **extra):
        del count, params, extra
        total = norm(updates)
        is_recorded = jnp.isfinite(total)
        values = {"window": pushed(state.window, total), "seen": safe_increment(state.seen)}
        window, seen = (jnp.where(is_recorded, values[name], getattr(state, name)) for name in ("window", "seen"))
        # Infinity sorts the absent places last, beyond the index of the last value.
        ordered = jnp.sort(jnp.where(present(window, seen), window, jnp.inf))
        last = jnp.clip(seen, 1, self.window) - 1
        place = self.percentile / 100 * last.astype(total.dtype)
        below = jnp.clip(place.astype(jnp.int32), 0, last)
        low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
        bound = low + (place - below.astype(total.dtype)) * (high - low)
        bound = jnp.where(seen > 0, bound, jnp.finfo(total.dtype).max)
        return clipped(state, total, bound, values, is_recorded)
