"""Curves that go up and down."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from jax.core import Tracer

from .._protocol.fields import Number, number
from .._protocol.hyperparameters import format_value
from .._support.checks import FRACTION, POSITIVE
from ._curve import AbstractCurve, after
from ._pieces import interpolated
from ._warmups import WarmupCosineDecay


class CosineOneCycle(AbstractCurve):
    r"""Up to the peak and far below the start again, along half a period of a cosine each.

    From $b / d$ up to $b$ at step $\rho T$, then down to $b / (d d')$ at step $T$, each as in
    `PiecewiseInterpolate("cosine", ...)`. This is torch's `OneCycleLR`.

    Args:
        transition_steps: how many steps $T$ the cycle takes.
        peak_value: the largest number $b$.
        pct_start: the fraction $\rho$ of the cycle that goes up.
        div_factor: $d$, by which the peak is divided at the start.
        final_div_factor: $d'$, by which the number at the start is divided at the end.

    References:
        Smith and Topin, [Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
        Rates](https://arxiv.org/abs/1708.07120), 2017.
    """

    transition_steps: Number = number(needs=POSITIVE)
    peak_value: Number = number()
    pct_start: Number = number(0.3, needs=FRACTION)
    div_factor: Number = number(25.0, needs=POSITIVE)
    final_div_factor: Number = number(1e4, needs=POSITIVE)

    def value(self, t):
        start = self.peak_value / self.div_factor
        steps = (self.pct_start * self.transition_steps, self.transition_steps)
        return interpolated(t, steps, (start, self.peak_value, start / self.final_div_factor), "cosine")


class LinearOneCycle(AbstractCurve):
    r"""Up to the peak, back to the start and then far below it, along a line each.

    From $b / d$ up to $b$ at step $\rho T$, down to $b / d$ at step $\sigma T$, then to $b / (d d')$ at step $T$.

    Args:
        transition_steps: how many steps $T$ the cycle takes.
        peak_value: the largest number $b$.
        pct_start: the fraction $\rho$ of the cycle that goes up.
        pct_final: the fraction $\sigma$ of the cycle after which it is back where it started.
        div_factor: $d$, by which the peak is divided at the start.
        final_div_factor: $d'$, by which the number at the start is divided at the end.

    References:
        Smith and Topin, [Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
        Rates](https://arxiv.org/abs/1708.07120), 2017.
    """

    transition_steps: Number = number(needs=POSITIVE)
    peak_value: Number = number()
    pct_start: Number = number(0.3, needs=FRACTION)
    pct_final: Number = number(0.85, needs=FRACTION)
    div_factor: Number = number(25.0, needs=POSITIVE)
    final_div_factor: Number = number(1e4, needs=POSITIVE)

    def check(self) -> None:
        up, back = self.pct_start, self.pct_final
        if not isinstance(up - back, Tracer) and np.any(up > back):
            raise ValueError(
                f"`LinearOneCycle(pct_final=...)` is the fraction of the cycle after which it is back where it "
                f"started, and must be at least `pct_start={format_value(up)}`, got {format_value(back)}."
            )

    def value(self, t):
        start = self.peak_value / self.div_factor
        steps = tuple(x * self.transition_steps for x in (self.pct_start, self.pct_final, 1))
        return interpolated(t, steps, (start, self.peak_value, start, start / self.final_div_factor), "linear")


class SGDR(AbstractCurve):
    r"""Warm restarts: cosine decays one after the other, each with a warm-up if it has one.

    $$
    f(t) = f_i(t - t_i) \quad\text{for } t_i \le t < t_{i+1}, \qquad t_{i+1} = t_i + T_i, \quad t_0 = 0,
    $$

    where $f_i$ is a `WarmupCosineDecay` of $T_i$ steps. After the last one it stays at its end. `SGDR.geometric` makes
    the cycles of the paper, each so many times longer than the one before.

    Args:
        cycles: the cycles, each a `WarmupCosineDecay` or a mapping of its arguments, as optax takes them.

    References:
        Loshchilov and Hutter, [SGDR: Stochastic Gradient Descent with Warm
        Restarts](https://arxiv.org/abs/1608.03983), 2016.
    """

    cycles: tuple[WarmupCosineDecay, ...]

    def __init__(self, cycles: Iterable[Any]):
        self.cycles = tuple(c if isinstance(c, WarmupCosineDecay) else WarmupCosineDecay(**c) for c in cycles)
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
        r"""The cycles of the paper: $T_i = T_0 k^i$ steps from $b m^i$ down to $c$, without a warm-up.

        Args:
            peak_value: the number $b$ at the start.
            decay_steps: how many steps $T_0$ the first cycle takes.
            cycles: how many cycles there are.
            steps_factor: how many times longer than the one before each cycle is: $k$, the paper's $T_{mult}$.
            peak_factor: how many times higher than the one before each cycle starts: $m$.
            end_value: the number $c$ at the end of each cycle.
        """
        peaks = [peak_value * peak_factor**i for i in range(cycles)]
        steps = [decay_steps * steps_factor**i for i in range(cycles)]
        return cls(WarmupCosineDecay(p, p, 0, s, end_value) for p, s in zip(peaks, steps, strict=True))

    def value(self, t):
        out, start = self.cycles[0].value(t), self.cycles[0].decay_steps
        for cycle in self.cycles[1:]:
            out = after(t, start, out, cycle.value)
            start = start + cycle.decay_steps
        return out
