"""Schedules with a linear warm-up."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._protocol.fields import Number, OptionalNumber, number, required_number
from .._protocol.schedule import AbstractArithmetic
from .._support.checks import AT_LEAST_ONE, DECAY, NEVER_NEGATIVE, POSITIVE
from .._support.printing import format_value
from ._base import AbstractCurve, half_cosine, mix, power, progress, warmed_up
from ._curves import exponential_decay


class WarmupConstant(AbstractCurve):
    r"""Linear warm-up, then constant.

    $$
    f(t) = a\, (1 - x) + b\, x, \qquad x = \min(t / W, 1)
    $$

    With $W = 0$ it is $b$ from the first step on.

    Args:
        init_value: $a$, initial value.
        peak_value: $b$, value after the warm-up.
        warmup_steps: $W$, number of warm-up steps.
    """

    init_value: Number = required_number()
    peak_value: Number = required_number()
    warmup_steps: Number = required_number(needs=NEVER_NEGATIVE)

    def value(self, t):
        return mix(self.init_value, self.peak_value, progress(t, self.warmup_steps))


class EMAWarmup(AbstractCurve):
    r"""Warm-up of the decay of an exponential moving average: short averages early, long ones late.

    $$
    f(t) = \min\Big(\beta,\; \frac{1 + t}{T + t}\Big)
    $$

    For the decay of `ParamEMA`. The average of an early step then reaches back over about a tenth of the steps so far,
    for $T = 10$, as in TensorFlow's `ExponentialMovingAverage(num_updates=...)`.

        ParamEMA(AdamW(1e-3), decay=schedules.EMAWarmup(0.9999))

    Args:
        decay: $\beta$, decay after the warm-up.
        offset: $T$, the larger, the shorter the early averages.
    """

    decay: Number = required_number(needs=DECAY)
    offset: Number = number(10.0, needs=AT_LEAST_ONE)

    def value(self, t):
        return jnp.minimum(self.decay, (1 + t) / (self.offset + t))


class WarmupCosineDecay(AbstractCurve):
    r"""Linear warm-up, then cosine decay: the usual learning rate schedule of transformers.

    $$
    f(t) = \begin{cases}
        a + (b - a)\, t / W & t < W \\
        c + (b - c) \left(\tfrac12 (1 + \cos \pi x)\right)^p, \quad x = \min\big((t - W) / (T - W), 1\big) & t \ge W
    \end{cases}
    $$

    Args:
        init_value: $a$, initial value.
        peak_value: $b$, value after the warm-up.
        warmup_steps: $W$, number of warm-up steps.
        decay_steps: $T$, number of steps of the whole schedule, including the warm-up.
        end_value: $c$, end value.
        exponent: $p$, exponent of the cosine.

    Raises:
        ValueError: if `decay_steps` is not greater than `warmup_steps`.
    """

    init_value: Number = required_number()
    peak_value: Number = required_number()
    warmup_steps: Number = required_number(needs=NEVER_NEGATIVE)
    decay_steps: Number = required_number(needs=POSITIVE)
    end_value: Number = number(0.0)
    exponent: Number = number(1.0, needs=NEVER_NEGATIVE)

    def check(self) -> None:
        w, d = self.warmup_steps, self.decay_steps
        if not isinstance(w - d, (Tracer, AbstractArithmetic)) and np.any(w >= d):
            raise ValueError(
                f"`WarmupCosineDecay(decay_steps=...)` is the length of the whole schedule and must be greater than "
                f"`warmup_steps={format_value(w)}`, got {format_value(d)}."
            )

    def value(self, t):
        def decay(t):
            cosine = power(half_cosine(progress(t, self.decay_steps - self.warmup_steps)), self.exponent)
            return mix(self.end_value, self.peak_value, cosine)

        return warmed_up(t, self.init_value, self.peak_value, self.warmup_steps, decay)


class WarmupExponentialDecay(AbstractCurve):
    r"""Linear warm-up, then `ExponentialDecay`, whose steps are counted from the end of the warm-up.

    $$
    f(t) = \begin{cases}
        a + (b - a)\, t / W & t < W \\
        b\, r^x, \quad x = \max(t - W - t_0, 0) / T & t \ge W
    \end{cases}
    $$

    Args:
        init_value: $a$, initial value.
        peak_value: $b$, value after the warm-up.
        warmup_steps: $W$, number of warm-up steps.
        transition_steps: $T$, number of steps per period of the decay.
        decay_rate: $r$, factor per period.
        transition_begin: $t_0$, number of steps at the peak before the decay begins.
        staircase: whether to decay in steps at the end of each period.
        end_value: value at which the decay stops.
    """

    init_value: Number = required_number()
    peak_value: Number = required_number()
    warmup_steps: Number = required_number(needs=NEVER_NEGATIVE)
    transition_steps: Number = required_number(needs=POSITIVE)
    decay_rate: Number = required_number(needs=POSITIVE)
    transition_begin: Number = number(0, needs=NEVER_NEGATIVE)
    staircase: bool = eqx.field(static=True, default=False)
    end_value: OptionalNumber = number(None, optional=True)

    def value(self, t):
        def decay(t):
            return exponential_decay(self, self.peak_value, t)

        return warmed_up(t, self.init_value, self.peak_value, self.warmup_steps, decay)
