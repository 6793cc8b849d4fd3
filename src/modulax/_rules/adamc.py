"""AdamC: AdamW with corrected weight decay."""

from typing import Any, Self

import jax.numpy as jnp

from .. import authoring as ma
from .._protocol.schedule import AbstractSchedule, has_stateful_schedule
from .._protocol.schedule_values import at_all_magnitudes
from .._support.module import with_fields
from .._transforms.decayed_step import DecayedStep
from .adam import ScaleByAdam


class AdamC(ma.AbstractMoments, ma.AbstractRated):
    r"""AdamW with corrected weight decay, for schedules that end near zero.

        optimizer = AdamC(schedules.CosineDecay(1e-3, 10_000), weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad \hat m_t = m_t / (1 - \beta_1^t) \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta_t \left( \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon}
        + \frac{\eta_t}{\eta_{\max}} \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. In a layer before a normalization, steps
    and decay balance at some norm of the weights. With AdamW this norm falls with the learning rate, and the gradients
    grow; here it stays the same. With a constant learning rate it is AdamW.

    For a schedule of the step, $\eta_{\max}$ is found to within one percent. Pass `peak` for a schedule that depends on
    the loss, and for a number that changes during the run. In other optimizers, a schedule of the weight decay does the
    same: `Lion(rate, weight_decay=0.1 * rate / 1e-4)`.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$ at the highest learning rate, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        peak: $\eta_{\max}$, the highest learning rate; by default that of `learning_rate`.

    References:
        Defazio, [Why Gradients Rapidly Increase Near the End of Training](https://arxiv.org/abs/2506.02285), 2025.
    """

    mu_dtype: ma.DTypeLike | None = ma.static(None)
    weight_decay: ma.Number = ma.number(0.01)
    mask: ma.Mask = ma.mask()
    peak: ma.OptionalNumber = ma.number(None, needs=ma.POSITIVE, optional=True)

    def check(self) -> None:
        if self.peak is None and has_stateful_schedule(self.learning_rate):
            raise ValueError(_unknown("`AdamC(peak=...)`", self.learning_rate))

    # Overridden because the peak is that of the whole schedule.
    def _completed(self) -> Self:
        return with_fields(self, peak=_peak(self.learning_rate)) if self.peak is None else self

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByAdam), self._part(DecayedStep, kind="corrected"))


def _unknown(call: str, schedule: Any) -> str:
    return f"{call} is needed: the highest value of `{schedule._title()}` cannot be found."


def _peak(rate: Any) -> Any:
    """The value of a learning rate that is the highest, or the lowest of one below zero."""
    if not isinstance(rate, AbstractSchedule):
        return rate
    try:
        values = at_all_magnitudes(rate)
        return values[jnp.argmax(jnp.abs(values))]
    except Exception as error:  # a user's function may raise anything for a step that is not an integer
        raise ValueError(_unknown("`AdamC(peak=...)`", rate)) from error
