"""Optimizers that find their own step size."""

from typing import Any, ClassVar, Literal

import equinox as eqx

from .._checks import DECAY, POSITIVE, check_choice
from .._containers.chain import Chain
from .._rules import as_rule
from .._schedule import Hyperparameter, followed, number, numbers
from .._transform import AbstractTransform
from .._transforms.distance import ScaleByCOCOB, ScaleByDoG, ScaleByDoWG, as_initial_step, check_initial_step
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import Scale, ScaleByLearningRate
from .._transforms.step_size import ScaleByMoMo, ScaleByMoMoAdam, ScaleByPolyak
from .._transforms.tuning_free import ScaleByDAdaptAdam, ScaleByProdigy, StepWithDecay
from .._types import Follow
from .base import AbstractOptimizer


class COCOB(AbstractOptimizer):
    r"""Coin betting: gradient descent without a learning rate. See `ScaleByCOCOB` for the equations.

    Args:
        learning_rate: a factor of the gradients, to which the steps are all but indifferent.
        alpha: by which the first bets are made smaller.
        eps: the largest gradient that is assumed at first.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Orabona and Tommasi, [Training Deep Networks without Learning Rates Through Coin
        Betting](https://arxiv.org/abs/1705.07795), 2017.
    """

    takes_complex: ClassVar[bool] = False
    cites: ClassVar[tuple[str, ...]] = ("orabona2017",)

    learning_rate: Hyperparameter = number(1.0)
    alpha: Hyperparameter = number(100.0)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay, self.mask),
            Scale(self.learning_rate),
            ScaleByCOCOB(self.alpha, self.eps),
        )


class DoG(AbstractOptimizer):
    r"""Gradient descent with distance over gradients as its learning rate. See `ScaleByDoG` for the equations.

    Args:
        learning_rate: a factor of the step size; a schedule may bring it to zero.
        init_step: how long the first step is: `("heuristic", 1e-6)`, `("distance", r)` or `("learning_rate", eta)`, as
            in `ScaleByDoG`.
        eps: added to the sum of squares.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Ivgi, Hinder and Carmon, [DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size
        Schedule](https://arxiv.org/abs/2302.12022), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("ivgi2023",)

    learning_rate: Hyperparameter = number(1.0)
    init_step: Any = eqx.field(default=("heuristic", 1e-6), converter=as_initial_step)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def __check_init__(self) -> None:
        check_initial_step(self, self.init_step)

    def transform(self) -> Chain:
        return _penalized(self.weight_decay, self.mask, ScaleByDoG(self.init_step, self.eps), self.learning_rate)


class DoWG(AbstractOptimizer):
    r"""Gradient descent with distance over weighted gradients as its learning rate. See `ScaleByDoWG`.

    Args:
        learning_rate: a factor of the step size; a schedule may bring it to zero.
        init_estim_sq_dist: the squared distance to the solution that is assumed at first; by default `eps`.
        eps: added to the root of the sum of squares.
        weight_decay: $\lambda$ of the penalty $\lambda w$ that is added to the gradient; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Khaled, Mishchenko and Jin, [DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
        Method](https://arxiv.org/abs/2305.16284), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("khaled2023",)

    learning_rate: Hyperparameter = number(1.0)
    init_estim_sq_dist: Hyperparameter | None = number(None, optional=True)
    eps: Hyperparameter = number(1e-4)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        scaling = ScaleByDoWG(self.init_estim_sq_dist, self.eps)
        return _penalized(self.weight_decay, self.mask, scaling, self.learning_rate)


def _penalized(weight_decay: Any, mask: Any, scaling: AbstractTransform, learning_rate: Any) -> Chain:
    parts = [] if weight_decay is None else [AddDecayedWeights(weight_decay, mask)]
    return Chain(*parts, scaling, ScaleByLearningRate(learning_rate))


class DAdaptAdamW(AbstractOptimizer):
    r"""Adam with decoupled weight decay and a step size found by D-Adaptation. See `ScaleByDAdaptAdam`.

    $w_{t+1} = w_t - u_t - \eta_t d_t \lambda w_t$.

    Args:
        learning_rate: $\eta$, a factor of the step size; a schedule that ends at zero from 1.0 is recommended.
        betas: the decays of the mean and of the mean square.
        eps: added to the root of the mean square.
        estim_lr0: the first estimate of the distance to the solution, which should be too small.
        weight_decay: $\lambda$, which is multiplied by the step size.
        follow: `"paper"`, or `"optax"` for its bias corrections and weights.

    References:
        Defazio and Mishchenko, [Learning-Rate-Free Learning by D-Adaptation](https://arxiv.org/abs/2301.07733), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("defazio2023",)

    learning_rate: Hyperparameter = number(1.0)
    betas: tuple[Hyperparameter, Hyperparameter] = numbers((0.9, 0.999), needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    weight_decay: Hyperparameter = number(0.0)
    follow: Follow = followed()

    def transform(self) -> StepWithDecay:
        b1, b2 = self.betas
        rule = ScaleByDAdaptAdam(self.learning_rate, b1, b2, self.eps, self.estim_lr0, follow=self.follow)
        return StepWithDecay(rule, self.weight_decay)


class Prodigy(AbstractOptimizer):
    r"""Adam with decoupled weight decay and a step size found by Prodigy. See `ScaleByProdigy` for the equations.

    $w_{t+1} = w_t - u_t - \eta_t d_t \lambda w_t$.

    Args:
        learning_rate: $\eta$, a factor of the step size; a schedule that ends at zero from 1.0 is recommended.
        betas: the decays of the mean and of the mean square.
        beta3: the decay of the sums behind the estimate; by default the root of the second of `betas`.
        eps: added to the root of the mean square, times the estimate.
        estim_lr0: the first estimate of the distance to the solution, which should be too small.
        estim_lr_coef: a factor of the estimates, the number to tune if there must be one.
        weight_decay: $\lambda$, which is multiplied by the step size.
        safeguard_warmup: whether to leave the learning rate out of the denominator of the estimate, for one that warms
            up.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"`, or `"optax"` for its bias corrections.

    References:
        Mishchenko and Defazio, [Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner](https://arxiv.org/abs/2306.06101), 2023.
    """

    cites: ClassVar[tuple[str, ...]] = ("mishchenko2023",)

    learning_rate: Hyperparameter = number(1.0)
    betas: tuple[Hyperparameter, Hyperparameter] = numbers((0.9, 0.999), needs=DECAY)
    beta3: Hyperparameter | None = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    estim_lr_coef: Hyperparameter = number(1.0)
    weight_decay: Hyperparameter = number(0.0)
    safeguard_warmup: bool = eqx.field(static=True, default=False)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> StepWithDecay:
        rule = ScaleByProdigy(
            self.learning_rate,
            *self.betas,
            self.beta3,
            self.eps,
            self.estim_lr0,
            self.estim_lr_coef,
            self.safeguard_warmup,
            follow=self.follow,
        )
        return StepWithDecay(rule, self.weight_decay, self.mask)


class MoMo(AbstractOptimizer):
    """Gradient descent with momentum and an adaptive step size. See `ScaleByMoMo` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    Args:
        learning_rate: the longest step, which may be large.
        beta: the decay of the averages.
        lower_bound: a lower bound of the loss; zero is often a good one.
        weight_decay: the rate of the proximal weight decay.
        adapt_lower_bound: whether to estimate the lower bound on the way.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

    learning_rate: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(0.9, needs=DECAY)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        rule = ScaleByMoMo(
            self.learning_rate,
            self.beta,
            self.lower_bound,
            self.weight_decay,
            self.adapt_lower_bound,
            follow=self.follow,
        )
        return Chain(rule, Scale(-1.0))


class MoMoAdam(AbstractOptimizer):
    """Adam with an adaptive step size. See `ScaleByMoMoAdam` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    Args:
        learning_rate: the longest step, which may be large.
        b1: the decay of the averages.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        lower_bound: a lower bound of the loss; zero is often a good one.
        weight_decay: the rate of the proximal weight decay.
        adapt_lower_bound: whether to estimate the lower bound on the way.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("schaipp2023",)

    learning_rate: Hyperparameter = number(1e-2)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        rule = ScaleByMoMoAdam(
            self.learning_rate,
            self.b1,
            self.b2,
            self.eps,
            self.lower_bound,
            self.weight_decay,
            self.adapt_lower_bound,
            follow=self.follow,
        )
        return Chain(rule, Scale(-1.0))


class PolyakSGD(AbstractOptimizer):
    r"""Gradient descent with Polyak's step size. See `ScaleByPolyak` for the equations.

    `update` and `step` need the loss: `optimizer.step(grads, state, params, value=loss)`.

    The `scaling` $s$ is a factor of the step. With `follow="optax"` it is one of the gradient, so that the step is $s
    \min((f - f^\star) / (s^2 \|g\|^2 + \varepsilon), \eta_{\max}) g$: the smaller $s$ is, the longer it gets.

    Args:
        max_learning_rate: the longest step.
        scaling: $s$.
        f_min: the smallest value of the loss, or a lower bound of it.
        eps: added to the squared norm.
        variant: `"sps"`, or `"sps+"`, which never ascends.
        follow: `"paper"`, or `"optax"` for what is said above.

    References:
        Loizou et al., [Stochastic Polyak Step-size for SGD: An Adaptive Learning Rate for Fast
        Convergence](https://arxiv.org/abs/2002.10542), 2020.
    """

    needs_extra: ClassVar[tuple[str, ...]] = ("value",)
    cites: ClassVar[tuple[str, ...]] = ("loizou2020",)

    max_learning_rate: Hyperparameter = number(1.0)
    scaling: Hyperparameter = number(1.0)
    f_min: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(0.0)
    variant: Literal["sps", "sps+"] = eqx.field(static=True, default="sps")
    follow: Follow = followed()

    def __check_init__(self) -> None:
        check_choice(self, "variant", ("sps", "sps+"))

    def transform(self) -> Chain:
        polyak = ScaleByPolyak(self.f_min, self.max_learning_rate, self.eps, self.variant)
        rate = ScaleByLearningRate(self.scaling)
        return Chain(polyak, rate) if self.follow == "paper" else Chain(rate, polyak)
