"""Optimizers that need no decay of the learning rate."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, DTypeLike, Float

from .._containers.chain import Chain
from .._containers.schedule_free import ScheduleFree
from .._protocol.fields import Hyperparameter, Number, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.schedule import AbstractSchedule
from .._support.arithmetic import bias, default_float, safe_sqrt
from .._support.checks import DECAY, FRACTION, NON_NEGATIVE
from .._support.types import Follow
from .._transforms.regularization import AddDecayedWeights
from .._transforms.rmsprop import ScaleByRMS
from .._transforms.scaling import ScaleByLearningRate


class ScheduleFreeRate(AbstractSchedule):
    r"""The learning rate with its warm-up and Adam's bias correction: $\gamma \sqrt{1 - \beta_2^t} \min(1, t / T)$.

    Args:
        learning_rate: $\gamma$.
        warmup_steps: $T$; None for no warm-up.
        b2: $\beta_2$; None for no correction.
        first: the number $t$ of the first step.
    """

    learning_rate: Number = number()
    warmup_steps: Number | None = number(None, optional=True)
    b2: Number | None = number(None, optional=True)
    first: int = eqx.field(static=True, default=1)

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        t = jnp.asarray(step).astype(default_float()) + self.first
        rate = jnp.asarray(self.learning_rate)
        if self.warmup_steps is not None:
            rate = rate * jnp.where(t < self.warmup_steps, t / jnp.maximum(self.warmup_steps, 1), 1)
        return rate if self.b2 is None else rate * safe_sqrt(bias(self.b2, t))


class ScheduleFreeSGD(AbstractOptimizer):
    r"""Gradient descent that needs no decay of its learning rate. See `ScheduleFree` for the equations.

    Evaluate and ship `eval_params(state, params)`. The best learning rate is larger than with a schedule.

    Args:
        learning_rate: $\gamma$.
        warmup_steps: the number $T$ of steps in which the rate rises, as $\gamma \min(1, t / T)$; None for none.
        b1: the interpolation, in place of momentum.
        weight_decay: $\lambda$ of the penalty $\lambda y$ that is added to the gradient; None for none.
        weight_lr_power: the power of the learning rate by which a point is weighed in the mean.
        state_dtype: the dtype of both sets of parameters in the state; by default the parameter's, at least float32.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: how the warm-up begins: with $\gamma / T$, `"paper"`, or with a step of zero, `"optax"`.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024.
    """

    cites: ClassVar[tuple[str, ...]] = ("defazio2024",)

    learning_rate: Hyperparameter = number(1.0)
    warmup_steps: Hyperparameter | None = number(None, needs=NON_NEGATIVE, optional=True)
    b1: Hyperparameter = number(0.9, needs=FRACTION)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    weight_lr_power: Hyperparameter = number(2.0)
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: dataclasses.KW_ONLY
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> ScheduleFree:
        rate: Any = self.learning_rate
        if self.warmup_steps is not None:
            rate = ScheduleFreeRate(rate, self.warmup_steps, None, first=int(self.follow == "paper"))
        decay = [] if self.weight_decay is None else [AddDecayedWeights(self.weight_decay, self.mask)]
        steps = Chain(*decay, ScaleByLearningRate(rate))
        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=self.follow)


class ScheduleFreeAdamW(AbstractOptimizer):
    r"""AdamW that needs no decay of its learning rate: it averages its points instead of momentum.

    $$
    \begin{aligned}
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2, \qquad g_t = \nabla f(y_t) \\
    \gamma_t &= \gamma \sqrt{1 - \beta_2^t} \min(1, t / T) \\
    u_t &= - \gamma_t \big(g_t / (\sqrt{v_t} + \varepsilon) + \lambda y_t\big)
    \end{aligned}
    $$

    and $y$, $z$ and $x$ as in `ScheduleFree`, with the rates $\gamma_t$. Evaluate and ship
    `eval_params(state, params)`. The best learning rate is larger than AdamW's, often by a factor between 1 and 10; in
    long runs $\beta_1$ may be 0.95 or 0.98.

    Args:
        learning_rate: $\gamma$.
        warmup_steps: the number $T$ of steps in which the rate rises; None for none.
        b1: the interpolation $\beta_1$, in place of Adam's mean.
        b2: the decay $\beta_2$ of the mean square.
        eps: $\varepsilon$, added to the root of the mean square.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        weight_lr_power: the power of the learning rate by which a point is weighed in the mean.
        state_dtype: the dtype of both sets of parameters in the state; by default the parameter's, at least float32.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: whose bias correction and warm-up: a factor of the learning rate, so that early points weigh less in
            the mean, `"paper"`; or AdamW's in the denominator, and a warm-up from a step of zero, `"optax"`.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024, algorithm 1.
    """

    cites: ClassVar[tuple[str, ...]] = ("defazio2024",)

    learning_rate: Hyperparameter = number(0.0025)
    warmup_steps: Hyperparameter | None = number(None, needs=NON_NEGATIVE, optional=True)
    b1: Hyperparameter = number(0.9, needs=FRACTION)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    weight_lr_power: Hyperparameter = number(2.0)
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: dataclasses.KW_ONLY
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> ScheduleFree:
        is_paper = self.follow == "paper"
        rate: Any = self.learning_rate
        if is_paper or self.warmup_steps is not None:
            rate = ScheduleFreeRate(rate, self.warmup_steps, self.b2 if is_paper else None, first=int(is_paper))
        steps = Chain(
            ScaleByRMS(self.b2, self.eps, eps_in_sqrt=False, bias_correction=not is_paper),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(rate),
        )
        return ScheduleFree(steps, rate, self.b1, self.weight_lr_power, self.state_dtype, follow=self.follow)
