"""Optimizers of Adam's family: other second moments, norms of layers, differences of gradients."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._checks import DECAY
from .._containers.chain import Chain
from .._rules import as_rule
from .._schedule import Hyperparameter, followed, number
from .._transforms.accumulators import ScaleByAdan, ScaleByNovoGrad, ScaleByOptimisticGradient
from .._transforms.adaptive import ScaleByAdam
from .._transforms.moments import ScaleByAdamax, ScaleByAMSGrad, ScaleByBelief, ScaleByRAdam, ScaleByYogi
from .._transforms.regularization import AddDecayedWeights, ProximalWeightDecay
from .._transforms.scaling import ScaleByLearningRate
from .._types import Follow
from .base import AbstractOptimizer


class Adamax(AbstractOptimizer):
    """Adam with the maximum of past gradients in place of their root mean square. See `ScaleByAdamax`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the maximum.
        eps: added to the absolute values before the maximum.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)

    def transform(self) -> Chain:
        return Chain(ScaleByAdamax(self.b1, self.b2, self.eps), ScaleByLearningRate(self.learning_rate))


class AdamaxW(AbstractOptimizer):
    """Adamax with decoupled weight decay. See `ScaleByAdamax` and `AdamW`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the maximum.
        eps: added to the absolute values before the maximum.
        weight_decay: the rate of decay, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014, section 7.1;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdamax(self.b1, self.b2, self.eps),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class AMSGrad(AbstractOptimizer):
    """Adam with the largest mean square so far in place of the last, so that no step grows again.

    See `ScaleByAMSGrad` for the equations, and for the three forms in use.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        bias_correction_mu: whether the mean is corrected for its start at zero.
        bias_correction_nu: whether the mean square is.
        follow: `"paper"`: the maximum of the mean square as it is; `"optax"`: of the corrected one.

    References:
        Reddi, Kale and Kumar, [On the Convergence of Adam and Beyond](https://openreview.net/forum?id=ryQu7f-RZ), 2018.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    bias_correction_mu: bool = eqx.field(static=True, default=True)
    bias_correction_nu: bool = eqx.field(static=True, default=True)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(
            ScaleByAMSGrad(
                self.b1,
                self.b2,
                self.eps,
                self.eps_root,
                self.mu_dtype,
                self.bias_correction_mu,
                self.bias_correction_nu,
                follow=self.follow,
            ),
            ScaleByLearningRate(self.learning_rate),
        )


class AdaBelief(AbstractOptimizer):
    """Adam with the distance of the gradients from their mean in place of their size. See `ScaleByBelief`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the squared distance.
        eps: added to the root of the squared distance.
        eps_root: added to the squared distance at every step.
        weight_decay: the rate of decay, which is multiplied by the learning rate; None for none.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to look ahead.

    References:
        Zhuang et al., [AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
        Gradients](https://arxiv.org/abs/2010.07468), 2020.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: Hyperparameter | None = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        belief = ScaleByBelief(self.b1, self.b2, self.eps, self.eps_root, nesterov=self.nesterov)
        decay = [] if self.weight_decay is None else [AddDecayedWeights(self.weight_decay, self.mask)]
        return Chain(belief, *decay, ScaleByLearningRate(self.learning_rate))


class Yogi(AbstractOptimizer):
    """Adam with a second moment that does not decay in a hurry. See `ScaleByYogi`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: by which the second moment changes.
        eps: added to the root of the second moment.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-3)

    def transform(self) -> Chain:
        return Chain(ScaleByYogi(self.b1, self.b2, self.eps), ScaleByLearningRate(self.learning_rate))


class RAdam(AbstractOptimizer):
    """Adam that warms up by itself, until its mean square rests on enough gradients. See `ScaleByRAdam`.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        threshold: from which length of the average on the steps are adaptive.
        nesterov: whether to look ahead.

    References:
        Liu et al., [On the Variance of the Adaptive Learning Rate and Beyond](https://arxiv.org/abs/1908.03265), 2019.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    threshold: Hyperparameter = number(5.0)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByRAdam(self.b1, self.b2, self.eps, self.eps_root, self.threshold, nesterov=self.nesterov),
            ScaleByLearningRate(self.learning_rate),
        )


class NovoGrad(AbstractOptimizer):
    """Momentum of gradients that are divided, array by array, by their typical norm. See `ScaleByNovoGrad`.

    Args:
        learning_rate: the step size.
        b1: the decay of the momentum.
        b2: the decay of the squared norm; the default is optax's, the paper's is 0.98.
        eps: added to the norm.
        eps_root: added to the squared norm inside the root.
        weight_decay: the rate of decay, which is part of the momentum.

    References:
        Ginsburg et al., [Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
        Networks](https://arxiv.org/abs/1905.11286), 2019.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.25, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)

    def transform(self) -> Chain:
        return Chain(
            ScaleByNovoGrad(self.b1, self.b2, self.eps, self.eps_root, self.weight_decay),
            ScaleByLearningRate(self.learning_rate),
        )


class Adan(AbstractOptimizer):
    r"""Adam with a Nesterov momentum made of differences of gradients. See `ScaleByAdan` for the direction $u_t$.

    The weight decay is the paper's proximal one, $w_{t+1} = (w_t - \eta u_t) / (1 + \eta \lambda)$. With
    `follow="optax"` it is that of `AdamW`, $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, and the direction is optax's.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean.
        b2: the decay of the mean of the differences.
        b3: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"` or `"optax"`, in the weight of the difference and in the weight decay.

    References:
        Xie et al., [Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep
        Models](https://arxiv.org/abs/2208.06677), 2022.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.98, needs=DECAY)
    b2: Hyperparameter = number(0.92, needs=DECAY)
    b3: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(1e-8)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> Chain:
        direction = ScaleByAdan(self.b1, self.b2, self.b3, self.eps, self.eps_root, follow=self.follow)
        rate = ScaleByLearningRate(self.learning_rate)
        if self.follow == "paper":
            return Chain(direction, rate, ProximalWeightDecay(self.learning_rate, self.weight_decay, self.mask))
        return Chain(direction, AddDecayedWeights(self.weight_decay, self.mask), rate)


class OptimisticGradientDescent(AbstractOptimizer):
    """Gradient descent that extrapolates to the next gradient, for games. See `ScaleByOptimisticGradient`.

    Args:
        learning_rate: the step size.
        alpha: the weight of the gradient.
        beta: the weight of its change since the last step.

    References:
        Mokhtari, Ozdaglar and Pattathil, [A Unified Analysis of Extra-gradient and Optimistic Gradient Methods for
        Saddle Point Problems: Proximal Point Approach](https://arxiv.org/abs/1901.08511), 2019.
    """

    learning_rate: Hyperparameter = number()
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)

    def transform(self) -> Chain:
        return Chain(ScaleByOptimisticGradient(self.alpha, self.beta), ScaleByLearningRate(self.learning_rate))


class OptimisticAdam(AbstractOptimizer):
    """Adam whose direction extrapolates to the next one, for games. See `ScaleByOptimisticGradient`.

    It is optax's `optimistic_adam_v2`. The paper has no look-ahead in the mean: `nesterov=False`.

    Args:
        learning_rate: the step size.
        alpha: the weight of Adam's direction.
        beta: the weight of its change since the last step.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether the mean looks ahead.

    References:
        Daskalakis et al., [Training GANs with Optimism](https://arxiv.org/abs/1711.00141), 2017.
    """

    cites: ClassVar[tuple[str, ...]] = ("daskalakis2017",)

    learning_rate: Hyperparameter = number()
    _: KW_ONLY
    alpha: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(1.0)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            ScaleByOptimisticGradient(self.alpha, self.beta),
            ScaleByLearningRate(self.learning_rate),
        )
