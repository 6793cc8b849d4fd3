"""Cyclic schedules: one-cycle policies and warm restarts."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from jax.core import Tracer

from .._protocol.fields import Number, number, required_number
from .._protocol.schedule import AbstractArithmetic, numbers_at
from .._support.checks import FRACTION, POSITIVE
from .._support.printing import format_value
from ._base import AbstractCurve, after
from ._pieces import interpolated
from ._warmups import WarmupCosineDecay


class CosineOneCycle(AbstractCurve):
    r"""One-cycle policy with cosine phases: up to the peak, then far below the start. It is torch's `OneCycleLR`.

    From $b / d$ up to $b$ at step $\rho T$, then down to $b / (d d')$ at step $T$, each phase as in
    `PiecewiseInterpolate("cosine", ...)`.

    Args:
        transition_steps: $T$, number of steps of the cycle.
        peak_value: $b$, peak value.
        pct_start: $\rho$, fraction of the cycle in which the value increases.
        div_factor: $d$, ratio of the peak to the initial value.
        final_div_factor: $d'$, ratio of the initial to the final value.

    References:
        Smith and Topin, [Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
        Rates](https://arxiv.org/abs/1708.07120), 2017.
    """

    transition_steps: Number = required_number(needs=POSITIVE)
    peak_value: Number = required_number()
    pct_start: Number = number(0.3, needs=FRACTION)
    div_factor: Number = number(25.0, needs=POSITIVE)
    final_div_factor: Number = number(1e4, needs=POSITIVE)

    def value(self, t):
        start = self.peak_value / self.div_factor
        steps = (self.pct_start * self.transition_steps, self.transition_steps)
        return interpolated(t, steps, (start, self.peak_value, start / self.final_div_factor), "cosine")


class LinearOneCycle(AbstractCurve):
    r"""One-cycle policy with linear phases: up to the peak, back to the start, and then far below it.

    From $b / d$ up to $b$ at step $\rho T$, down to $b / d$ at step $\sigma T$, then to $b / (d d')$ at step $T$.

    Args:
        transition_steps: $T$, number of steps of the cycle.
        peak_value: $b$, peak value.
        pct_start: $\rho$, fraction of the cycle in which the value increases.
        pct_final: $\sigma$, fraction of the cycle after which the value is back at its start.
        div_factor: $d$, ratio of the peak to the initial value.
        final_div_factor: $d'$, ratio of the initial to the final value.

    Raises:
        ValueError: if `pct_final` is less than `pct_start`.

    References:
        Smith and Topin, [Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
        Rates](https://arxiv.org/abs/1708.07120), 2017.
    """

    transition_steps: Number = required_number(needs=POSITIVE)
    peak_value: Number = required_number()
    pct_start: Number = number(0.3, needs=FRACTION)
    pct_final: Number = number(0.85, needs=FRACTION)
    div_factor: Number = number(25.0, needs=POSITIVE)
    final_div_factor: Number = number(1e4, needs=POSITIVE)

    def check(self) -> None:
        up, back = self.pct_start, self.pct_final
        if not isinstance(up - back, (Tracer, AbstractArithmetic)) and np.any(up > back):
            raise ValueError(
                f"`LinearOneCycle(pct_final=...)` is the fraction of the cycle after which the value is back at its "
                f"start, and must be at least `pct_start={format_value(up)}`, got {format_value(back)}."
            )

    def value(self, t):
        start = self.peak_value / self.div_factor
        steps = tuple(x * self.transition_steps for x in (self.pct_start, self.pct_final, 1))
        return interpolated(t, steps, (start, self.peak_value, start, start / self.final_div_factor), "linear")


class SGDR(AbstractCurve):
    r"""Cosine decay with warm restarts (SGDR), optionally with a warm-up in every cycle.

    $$
    f(t) = f_i(t - t_i) \quad\text{for } t_i \le t < t_{i+1}, \qquad t_{i+1} = t_i + T_i, \quad t_0 = 0,
    $$

    where $f_i$ is a `WarmupCosineDecay` of $T_i$ steps. After the last cycle the value stays at its end.
    `SGDR.geometric` builds the cycles of the paper, whose lengths grow by a constant factor.

    Args:
        cycles: the cycles, each a `WarmupCosineDecay` or a mapping of its arguments, as in optax.

    Raises:
        ValueError: if there is no cycle.

    References:
        Loshchilov and Hutter, [SGDR: Stochastic Gradient Descent with Warm Restarts](https://arxiv.org/abs/1608.03983),
        2016.
    """

    cycles: tuple[WarmupCosineDecay, ...]

    def __init__(self, cycles: Iterable[Any]):
        self.cycles = tuple(WarmupCosineDecay(**c) if isinstance(c, Mapping) else c for c in cycles)
        if not self.cycles:
            raise ValueError(
                "`SGDR` needs at least one cycle: `SGDR([WarmupCosineDecay(0.0, 1e-3, 10, 100), ...])`, or "
                "`SGDR.geometric(1e-3, 100, cycles=4)`."
            )

    @classmethod
    def geometric(
        cls,
        peak_value: Any,
        decay_steps: Any,
        cycles: int,
        steps_factor: Any = 2.0,
        peak_factor: Any = 1.0,
        end_value: Any = 0.0,
    ) -> Self:
        """Build the cycles of the paper, without warm-up: $T_i = T_0 k^i$ steps from $b m^i$ down to $c$.

        Args:
            peak_value: $b$, initial value of the first cycle.
            decay_steps: $T_0$, number of steps of the first cycle.
            cycles: number of cycles.
            steps_factor: $k$, factor by which the length grows per cycle: $T_{mult}$ in the paper.
            peak_factor: $m$, factor by which the initial value changes per cycle.
            end_value: $c$, end value of each cycle.
        """
        peaks = [peak_value * peak_factor**i for i in range(cycles)]
        steps = [decay_steps * steps_factor**i for i in range(cycles)]
        return cls(WarmupCosineDecay(p, p, 0, s, end_value) for p, s in zip(peaks, steps, strict=True))

    def value(self, t):
        first, *others = [numbers_at(cycle, t) for cycle in self.cycles]
        out, start = first.value(t), first.decay_steps
        for cycle in others:
            out = after(t, start, out, cycle.value)
            start = start + cycle.decay_steps
        return out
