"""Schedules for runs of open length, mostly for language models."""

from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp

from .._protocol.fields import Number, OptionalNumber, choice, number, required_number
from .._support.arithmetic import safe_sqrt
from .._support.checks import NON_NEGATIVE, POSITIVE, Requirement, require
from .._support.tracing import is_tracing
from ._base import AbstractCurve, after, half_cosine, mix, progress, warmed_up

DecayForm: TypeAlias = Literal["linear", "1-sqrt", "cosine", "exponential"]


_NOT_ZERO = Requirement(lambda x: x > 0, 'must be positive with `decay="exponential"`, which never reaches zero')


def check_decay_form(curve: Any, *names: str) -> None:
    """Check that the ends of an exponential decay are positive."""
    for name in names if curve.decay == "exponential" else ():
        call = f"`{type(curve).__name__}({name}=...)`"
        object.__setattr__(curve, name, require(call, getattr(curve, name), _NOT_ZERO, deferred=not is_tracing()))


def decayed(form: str, start: Any, end: Any, x: Any) -> Any:
    """Decay from `start` to `end` as `x` goes from 0 to 1."""
    if form == "exponential":
        return start ** (1 - x) * end**x
    left = {"linear": lambda: 1 - x, "1-sqrt": lambda: 1 - safe_sqrt(x), "cosine": lambda: half_cosine(x)}[form]()
    return mix(end, start, left)


class WarmupStableDecay(AbstractCurve):
    r"""Warmup-stable-decay (WSD): a linear warm-up, a constant phase, and a decay at the end.

    $$
    f(t) = \begin{cases}
        a + (b - a)\, t / W & t < W \\
        b & W \le t < W + S \\
        c + (b - c)\, w(x), \quad x = \min\big((t - W - S) / D, 1\big) & t \ge W + S
    \end{cases}
    $$

    The run can be extended as long as the decay has not begun, so its length need not be known in advance. `decay`
    selects the form of the decay:

    * `"linear"`: $w(x) = 1 - x$;
    * `"1-sqrt"`: $w(x) = 1 - \sqrt x$, which Hägele et al. found better than linear;
    * `"cosine"`: $w(x) = \tfrac12 (1 + \cos \pi x)$;
    * `"exponential"`: $b^{1 - x} c^x$ instead of the sum, with a constant half-life as in MiniCPM, whose $0.5^{t / T}$
      is $c = 0.5^{D / T} b$.

    Args:
        init_value: $a$, initial value.
        peak_value: $b$, value after the warm-up.
        warmup_steps: $W$, number of warm-up steps.
        stable_steps: $S$, number of steps at the peak.
        decay_steps: $D$, number of decay steps.
        end_value: $c$, end value.
        decay: form of the decay, one of the four above.

    Raises:
        ValueError: if `decay` is `"exponential"` and `peak_value` or `end_value` is not positive.

    References:
        Hu et al., [MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training
        Strategies](https://arxiv.org/abs/2404.06395), 2024, section 4; Hägele et al., [Scaling Laws and Compute-Optimal
        Training Beyond Fixed Training Durations](https://arxiv.org/abs/2405.18392), 2024.
    """

    init_value: Number = required_number()
    peak_value: Number = required_number()
    warmup_steps: Number = required_number(needs=NON_NEGATIVE)
    stable_steps: Number = required_number(needs=NON_NEGATIVE)
    decay_steps: Number = required_number(needs=POSITIVE)
    end_value: Number = number(0.0)
    decay: DecayForm = choice(get_args(DecayForm), "linear", kw_only=False)

    def check(self) -> None:
        check_decay_form(self, "peak_value", "end_value")

    def value(self, t):
        def decay(t):
            x = progress(t - self.stable_steps, self.decay_steps)
            return decayed(self.decay, self.peak_value, self.end_value, x)

        return warmed_up(t, self.init_value, self.peak_value, self.warmup_steps, decay)


class InverseSqrt(AbstractCurve):
    r"""Inverse square root schedule with linear warm-up, as in the original transformer. It has no end.

    $$
    f(t) = \begin{cases}
        a + (b - a)\, t / W & t < W \\
        b \sqrt{W / t} & t \ge W
    \end{cases}
    $$

    The paper's learning rate, $d^{-1/2} \min(t^{-1/2}, t\, W^{-3/2})$, is $a = 0$ and $b = (d W)^{-1/2}$. The paper
    counts steps from 1, so its first step is step 1 here; step 0 has the value $a$.

    Args:
        peak_value: $b$, value after the warm-up.
        warmup_steps: $W$, number of warm-up steps.
        init_value: $a$, initial value.

    References:
        Vaswani et al., [Attention Is All You Need](https://arxiv.org/abs/1706.03762), 2017, equation 3.
    """

    peak_value: Number = required_number()
    warmup_steps: Number = required_number(needs=POSITIVE)
    init_value: Number = number(0.0)

    def value(self, t):
        def decay(t):
            return self.peak_value * jnp.sqrt(self.warmup_steps / (self.warmup_steps + t))

        return warmed_up(t, self.init_value, self.peak_value, self.warmup_steps, decay)


class Power(AbstractCurve):
    r"""Power scheduler: a power of the number of training tokens, independent of batch size and length of the run.

    With $n = m t$ tokens after $t$ steps,

    $$
    g(t) = \min\big(b,\; \beta\, \alpha\, n^p\big), \qquad
    f(t) = \begin{cases}
        g(W)\, t / W & t < W \\
        g(t) & W \le t < t_1 \\
        c + (g(t_1) - c)\, w(x), \quad x = \min\big((t - t_1) / D, 1\big) & t \ge t_1
    \end{cases}
    $$

    Shen et al. fitted the default constants on small language models in μP, and used them for large ones at any batch
    size and number of tokens. The final decay has the same forms as in `WarmupStableDecay`.

    Args:
        batch_size: $\beta$, batch size in sequences.
        tokens_per_step: $m$, number of tokens per step. For a schedule stretched by `over`: the tokens of the whole
            run.
        warmup_steps: $W$, number of warm-up steps.
        decay_begin: $t_1$, step at which the final decay begins. By default there is none.
        decay_steps: $D$, number of steps of the final decay.
        end_value: $c$, end value.
        peak_value: $b$, upper bound of the value.
        amplitude: $\alpha$, the paper's $a$.
        exponent: $p$, the paper's $b$; negative.
        decay: form of the final decay: `"linear"`, `"1-sqrt"`, `"cosine"` or `"exponential"`.

    Raises:
        ValueError: if only one of `decay_begin` and `decay_steps` is given, or `decay` is `"exponential"` and
            `end_value` is not positive.

    References:
        Shen et al., [Power Scheduler: A Batch Size and Token Number Agnostic Learning Rate
        Scheduler](https://arxiv.org/abs/2408.13359), 2024, equations 7 and 8.
    """

    batch_size: Number = required_number(needs=POSITIVE)
    tokens_per_step: Number = required_number(needs=POSITIVE)
    warmup_steps: Number = number(0, needs=NON_NEGATIVE)
    decay_begin: OptionalNumber = number(None, needs=NON_NEGATIVE, optional=True)
    decay_steps: OptionalNumber = number(None, needs=POSITIVE, optional=True)
    end_value: Number = number(0.0)
    peak_value: Number = number(0.02)
    amplitude: Number = number(4.0)
    exponent: Number = number(-0.51)
    decay: DecayForm = choice(get_args(DecayForm), "linear", kw_only=False)

    def check(self) -> None:
        if (self.decay_begin is None) != (self.decay_steps is None):
            raise ValueError(
                "`Power` needs both the beginning and the length of the final decay, or neither: "
                "`Power(..., decay_begin=9_000, decay_steps=1_000)`."
            )
        if self.decay_begin is not None:
            check_decay_form(self, "end_value")

    def value(self, t):
        begin = self.warmup_steps
        out = jnp.where(t < begin, self._power(begin) * progress(t, begin), self._power(jnp.maximum(t, begin)))
        if self.decay_begin is None:
            return out

        def decay(t):
            return decayed(self.decay, self._power(self.decay_begin), self.end_value, progress(t, self.decay_steps))

        return after(t, self.decay_begin, out, decay)

    def _power(self, t):
        """The power $g(t)$."""
        n = self.tokens_per_step * t
        # Before the first token the power is infinite, so the value is the upper bound.
        power = self.batch_size * self.amplitude * jnp.where(n > 0, n, 1) ** self.exponent
        return jnp.where(n > 0, jnp.minimum(self.peak_value, power), self.peak_value)
