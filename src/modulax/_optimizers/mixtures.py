"""Adaptive optimizers of another make than Adam: ADOPT, AdEMAMix, ACProp, MADGRAD."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, DTypeLike

from .._checks import DECAY
from .._containers.chain import Chain
from .._rules import as_rule
from .._schedule import Hyperparameter, followed, number
from .._transforms.mixtures import (
    ScaleByACProp,
    ScaleByAdEMAMix,
    ScaleByADOPT,
    ScaleByMADGRAD,
    ScaleBySimplifiedAdEMAMix,
    fourth_root,
)
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._types import Follow
from .base import AbstractOptimizer


class ADOPT(AbstractOptimizer):
    """Adam changed so that it converges with any decay of the mean square. See `ScaleByADOPT` for the equations.

    The first step only measures the gradient: the parameters stay where they are.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: the smallest denominator.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether to look ahead.
        use_clipping: whether to clip what enters the mean.
        clip_value_fn: the bound for that, a function of the step.

    References:
        Taniguchi et al., [ADOPT: Modified Adam Can Converge with Any β2 with the Optimal
        Rate](https://arxiv.org/abs/2411.02853), 2024.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.9999, needs=DECAY)
    eps: Hyperparameter = number(1e-6)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)
    use_clipping: bool = eqx.field(static=True, default=True, kw_only=True)
    clip_value_fn: Callable[[Array], Array] = eqx.field(static=True, default=fourth_root, kw_only=True)

    def transform(self) -> Chain:
        adopt = ScaleByADOPT(
            self.b1,
            self.b2,
            self.eps,
            self.mu_dtype,
            nesterov=self.nesterov,
            use_clipping=self.use_clipping,
            clip_value_fn=self.clip_value_fn,
        )
        return Chain(adopt, ScaleByLearningRate(self.learning_rate))


class AdEMAMix(AbstractOptimizer):
    r"""AdamW with a second, slow mean of the gradients: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    $u_t$ is that of `ScaleByAdEMAMix`, whose `alpha` is 6 by default where it is 5 here, as in optax. The slow mean
    pays in long runs; the paper raises `alpha` and `b3` by schedules over the first part.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the fast mean.
        b2: the decay of the mean square.
        b3: the decay of the slow mean.
        alpha: the weight of the slow mean.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of both means; by default the parameter's.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Pagliardini et al., [The AdEMAMix Optimizer: Better, Faster, Older](https://arxiv.org/abs/2409.03137), 2024.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    b3: Hyperparameter = number(0.9999, needs=DECAY)
    alpha: Hyperparameter = number(5.0)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdEMAMix(self.b1, self.b2, self.b3, self.alpha, self.eps, self.eps_root, self.mu_dtype),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class SimplifiedAdEMAMix(AbstractOptimizer):
    r"""AdEMAMix with one momentum: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, $u_t$ of `ScaleBySimplifiedAdEMAMix`.

    The momentum is a sum, not a mean, so it wants a learning rate about $1 - \beta_1$ times Adam's.

    Args:
        learning_rate: $\eta$.
        b1: the decay $\beta_1$ of the momentum.
        b2: the decay of the mean square.
        alpha: the weight of the newest gradient beside the momentum.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Morwani et al., [Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD
        Variants](https://arxiv.org/abs/2502.02431), 2025.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.99, needs=DECAY)
    b2: Hyperparameter = number(0.95, needs=DECAY)
    alpha: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleBySimplifiedAdEMAMix(self.b1, self.b2, self.alpha, self.eps, self.eps_root),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class ACProp(AbstractOptimizer):
    r"""Gradients over their standard deviation so far: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$.

    $u_t$ is that of `ScaleByACProp`.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean, about which the variance is measured.
        b2: the decay of the variance.
        eps: added to the standard deviation. A model with ReLUs needs 1e-4 or so, see `ScaleByACProp`.
        eps_root: added to the variance in every step.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: `"paper"`, or `"optax"`, which measures the deviation from the mean before the step.

    References:
        Zhuang et al., [Momentum Centering and Asynchronous Update for Adaptive Gradient
        Methods](https://arxiv.org/abs/2110.05454), 2021.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-16)
    eps_root: Hyperparameter = number(1e-16)
    weight_decay: Hyperparameter = number(0.0)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(
            ScaleByACProp(self.b1, self.b2, self.eps, self.eps_root, follow=self.follow),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class MADGRAD(AbstractOptimizer):
    r"""Dual averaging with momentum: steps from the first point, not from the last. See `ScaleByMADGRAD`.

    Args:
        learning_rate: the step size.
        momentum: the momentum.
        weight_decay: the rate of an $L_2$ penalty, which is added to the gradient.
        eps: added to the denominator, and to the learning rate.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021.
    """

    learning_rate: Hyperparameter = number()
    momentum: Hyperparameter = number(0.9, needs=DECAY)
    weight_decay: Hyperparameter = number(0.0)
    eps: Hyperparameter = number(1e-6)

    def transform(self) -> Chain:
        return Chain(
            AddDecayedWeights(self.weight_decay),
            ScaleByMADGRAD(self.learning_rate, self.momentum, self.eps),
        )
