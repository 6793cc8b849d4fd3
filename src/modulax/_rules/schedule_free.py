"""The optimizers ScheduleFreeSGD and ScheduleFreeAdamW, which need no learning rate schedule.

`ScheduleFree` in `_containers/schedule_free.py` does the averaging. The two optimizers give it the steps, and the
learning rate with warm-up, `ScheduleFreeRate`, which it uses for the weights of the average.
"""

from typing import Any, ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import ArrayLike

from .. import authoring as ma
from .._containers.schedule_free import ScheduleFree
from .._protocol.container import OptimizerState
from .._protocol.schedule import AbstractSchedule
from .._protocol.schedule_values import has_factors, resolve
from .._support.checks import NEVER_NEGATIVE
from .._support.module import with_fields
from .._support.types import FollowReference
from .rmsprop import ScaleByRMS


class ScheduleFreeRate(AbstractSchedule):
    r"""Learning rate with linear warm-up and Adam's bias correction: $\gamma \sqrt{1 - \beta_2^t} \min(1, t / T)$.

    Args:
        learning_rate: learning rate $\gamma$.
        warmup_steps: number $T$ of warm-up steps; None for no warm-up.
        b2: $\beta_2$ of the bias correction; None for no correction.
        first: value of $t$ at the first step.
    """

    learning_rate: ma.Number = ma.required_number()
    warmup_steps: ma.OptionalNumber = ma.number(None, optional=True)
    b2: ma.OptionalNumber = ma.number(None, optional=True)
    first: int = ma.static(1)

    def __call__(self, step: ArrayLike) -> ma.Scalar:
        t = jnp.asarray(step).astype(ma.default_float()) + self.first
        rate = jnp.asarray(self.learning_rate)
        if self.warmup_steps is not None:
            rate = rate * jnp.where(t < self.warmup_steps, t / jnp.maximum(self.warmup_steps, 1), 1)
        return rate if self.b2 is None else rate * ma.safe_sqrt(ma.bias(self.b2, t))


class AbstractScheduleFreeOptimizer(ma.AbstractRated):
    r"""An optimizer that multiplies its learning rate by its own warm-up.

    Args:
        learning_rate: learning rate $\gamma$, a number or a schedule.
        warmup_steps: number $T$ of steps of linear warm-up; None for no warm-up.
        b1: interpolation $\beta_1$ between $z$ and $x$, which takes the place of momentum.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    warmup_steps: ma.OptionalNumber = ma.number(None, needs=NEVER_NEGATIVE, optional=True)
    b1: ma.Number = ma.number(0.9, needs=ma.FRACTION)
    _: ma.KW_ONLY
    mask: ma.Mask = ma.mask()
    follow: eqx.AbstractVar[Any]

    # Overridden because `metrics` has the learning rate with the warm-up.
    def at(self, state: OptimizerState) -> Self:
        """Return this optimizer with every schedule replaced by its value at the next step.

        Args:
            state: the state of this optimizer.
        """
        now = super().at(state)
        if now.warmup_steps is None or not has_factors():
            return now
        rate = ScheduleFreeRate(now.learning_rate, now.warmup_steps, first=int(self.follow != "optax"))
        return with_fields(now, learning_rate=resolve(rate, state.step))


class ScheduleFreeSGD(AbstractScheduleFreeOptimizer):
    r"""SGD without a learning rate schedule: averaging the iterates replaces learning rate decay and momentum.

        optimizer = ScheduleFreeSGD(1.0, warmup_steps=1000)
        params, state = optimizer.step(grads, state, params)
        average = optimizer.eval_params(state, params)  # evaluate and save these

    $$
    \begin{aligned}
    \gamma_t &= \gamma \min(1, t / T) \\
    z_{t+1} &= z_t - \gamma_t (\nabla f(y_t) + \lambda y_t) \\
    c_{t+1} &= w_t / \textstyle\sum_{i \le t} w_i, \qquad w_t = (\max_{i \le t} \gamma_i)^p \\
    x_{t+1} &= (1 - c_{t+1}) x_t + c_{t+1} z_{t+1} \\
    y_{t+1} &= (1 - \beta_1) z_{t+1} + \beta_1 x_{t+1}
    \end{aligned}
    $$

    with $t = 1, 2, \dots$, and $x$, $y$ and $z$ started from the initial parameters. The parameters during training are
    $y$. Evaluate and save the average $x$, which is `eval_params(state, params)`. The best learning rate is usually
    larger than with a schedule.

    Args:
        learning_rate: learning rate $\gamma$, a number or a schedule.
        warmup_steps: number $T$ of steps of linear warm-up; None for no warm-up.
        b1: interpolation $\beta_1$ between $z$ and $x$, which takes the place of momentum.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda y_t$ is added to the gradient;
            None for none.
        weight_lr_power: power $p$ of the learning rate in the weights of the average.
        state_dtype: dtype of $x$ and $z$ in the state; by default that of the parameters, at least float32.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"` starts the warm-up at $\gamma / T$; `"optax"` starts it at zero.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024.
    """

    _base: ClassVar[str] = "SGD(...)"

    learning_rate: ma.Number = ma.number(1.0)
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)
    weight_lr_power: ma.Number = ma.number(2.0)
    state_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()

    def transform(self) -> ScheduleFree:
        rate: Any = self.learning_rate
        if self.warmup_steps is not None:
            rate = ScheduleFreeRate(rate, self.warmup_steps, None, first=int(self.follow == "paper"))
        decay = [] if self.weight_decay is None else [ma.AddDecayedWeights(self.weight_decay, self.mask)]
        steps = ma.Chain(*decay, ma.ScaleByLearningRate(rate))
        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=self.follow)


class ScheduleFreeAdamW(AbstractScheduleFreeOptimizer):
    r"""AdamW without a learning rate schedule: averaging the iterates replaces learning rate decay and momentum.

        optimizer = ScheduleFreeAdamW(2.5e-3, warmup_steps=1000, weight_decay=0.01)
        params, state = optimizer.step(grads, state, params)
        average = optimizer.eval_params(state, params)  # evaluate and save these

    $$
    \begin{aligned}
    g_t &= \nabla f(y_t), \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad
        \hat v_t = v_t / (1 - \beta_2^t) \\
    \gamma_t &= \gamma \min(1, t / T) \\
    z_{t+1} &= z_t - \gamma_t \big( g_t / (\sqrt{\hat v_t} + \varepsilon) + \lambda y_t \big) \\
    c_{t+1} &= w_t / \textstyle\sum_{i \le t} w_i, \qquad w_t = (\max_{i \le t} \gamma_i)^p \\
    x_{t+1} &= (1 - c_{t+1}) x_t + c_{t+1} z_{t+1} \\
    y_{t+1} &= (1 - \beta_1) z_{t+1} + \beta_1 x_{t+1}
    \end{aligned}
    $$

    with $t = 1, 2, \dots$, $v_0 = 0$, and $x$, $y$ and $z$ started from the initial parameters. The parameters during
    training are $y$. Evaluate and save the average $x$, which is `eval_params(state, params)`. The best learning rate
    is usually 1 to 10 times that of AdamW; for long runs $\beta_1$ may be 0.95 or 0.98.

    Args:
        learning_rate: learning rate $\gamma$, a number or a schedule.
        warmup_steps: number $T$ of steps of linear warm-up; None for no warm-up.
        b1: interpolation $\beta_1$ between $z$ and $x$, which takes the place of momentum.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        weight_lr_power: power $p$ of the learning rate in the weights of the average.
        state_dtype: dtype of $x$ and $z$ in the state; by default that of the parameters, at least float32.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: `"reference"` equals the authors' package, schedulefree, as above. `"paper"` has the bias correction as
            a factor of the learning rate, $\gamma_t = \gamma \sqrt{1 - \beta_2^t} \min(1, t / T)$ with $v_t$ in place
            of $\hat v_t$, so that early iterates have small weights in the average. `"optax"` starts the warm-up at
            zero.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024, algorithm 1, and the authors'
        [code](https://github.com/facebookresearch/schedule_free).
    """

    _base: ClassVar[str] = "AdamW(..., b1=0.0)"

    learning_rate: ma.Number = ma.number(0.0025)
    b2: ma.Number = ma.number(0.999, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    weight_decay: ma.Number = ma.number(0.0)
    weight_lr_power: ma.Number = ma.number(2.0)
    state_dtype: ma.DTypeLike | None = ma.static(None)
    _: ma.KW_ONLY
    follow: FollowReference = ma.followed("reference", "paper", "optax")

    def transform(self) -> ScheduleFree:
        is_paper, is_optax = self.follow == "paper", self.follow == "optax"
        rate: Any = self.learning_rate
        if is_paper or self.warmup_steps is not None:
            rate = ScheduleFreeRate(rate, self.warmup_steps, self.b2 if is_paper else None, first=int(not is_optax))
        steps = ma.Chain(
            ScaleByRMS(self.b2, self.eps, eps_in_sqrt=False, bias_correction=not is_paper),
            ma.AddDecayedWeights(self.weight_decay, self.mask),
            ma.ScaleByLearningRate(rate),
        )
        begins: ma.Follow = "optax" if is_optax else "paper"
        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=begins)
