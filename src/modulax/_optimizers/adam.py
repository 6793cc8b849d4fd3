"""Adam and its kin: Nesterov momentum, decoupled weight decay, RMSProp, Lion."""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._checks import DECAY
from .._containers.chain import Chain
from .._rules import as_rule
from .._schedule import Hyperparameter, number
from .._transforms.adaptive import ScaleByAdam, ScaleByLion, ScaleByRMS, ScaleByStddev
from .._transforms.momentum import Trace
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .base import AbstractOptimizer


class Adam(AbstractOptimizer):
    r"""Adam: steps of about the learning rate in every coordinate. See `ScaleByAdam` for the equations.

    For weight decay use `AdamW`, not a penalty on the loss.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        nesterov: whether to look ahead; `NAdam` is a name for it.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            ScaleByLearningRate(self.learning_rate),
        )


class NAdam(AbstractOptimizer):
    """Adam with Nesterov's look-ahead, in Dozat's form. See `ScaleByAdam` for the equations.

    torch and Keras schedule the momentum besides, which this does not.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016.
    """

    cites: ClassVar[tuple[str, ...]] = ("dozat2016",)

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, nesterov=True),
            ScaleByLearningRate(self.learning_rate),
        )


class AdamW(AbstractOptimizer):
    r"""Adam with decoupled weight decay: $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, with $u_t$ of `ScaleByAdam`.

    The default $\lambda$ is optax's; torch's is 0.01.

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to look ahead; `NAdamW` is a name for it.

    References:
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    nesterov: bool = eqx.field(static=True, default=False, kw_only=True)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class NAdamW(AbstractOptimizer):
    """AdamW with Nesterov's look-ahead, in Dozat's form. See `ScaleByAdam` and `AdamW` for the equations.

    Args:
        learning_rate: the step size.
        b1: the decay of the mean.
        b2: the decay of the mean square.
        eps: added to the root of the mean square.
        eps_root: added to the mean square inside the root.
        mu_dtype: the dtype of the mean; by default the parameter's.
        weight_decay: the rate of decay, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    cites: ClassVar[tuple[str, ...]] = ("dozat2016",)

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, nesterov=True),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )


class RMSProp(AbstractOptimizer):
    r"""Gradient descent with each coordinate divided by the root of its mean square. See `ScaleByRMS`.

    The momentum, if any, is applied behind the learning rate. `eps_in_sqrt=False` is torch's form.

    Args:
        learning_rate: the step size.
        decay: the decay of the mean square.
        eps: added to the mean square, or to its root.
        initial_scale: the mean square at the start.
        eps_in_sqrt: whether `eps` is added inside the root.
        centered: whether to divide by the standard deviation instead, as `ScaleByStddev` does.
        momentum: the decay of the momentum; None for none, and no state for it.
        nesterov: whether the momentum looks ahead.
        bias_correction: whether the mean square is corrected for its start.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012;
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    learning_rate: Hyperparameter = number()
    decay: Hyperparameter = number(0.9, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    initial_scale: Hyperparameter = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    centered: bool = eqx.field(static=True, default=False)
    momentum: Hyperparameter | None = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)
    bias_correction: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        scaling = ScaleByStddev if self.centered else ScaleByRMS
        rms = scaling(self.decay, self.eps, self.initial_scale, self.eps_in_sqrt, self.bias_correction)
        rate = ScaleByLearningRate(self.learning_rate)
        return Chain(rms, rate) if self.momentum is None else Chain(rms, rate, Trace(self.momentum, self.nesterov))


class Lion(AbstractOptimizer):
    r"""Steps of exactly the learning rate in every coordinate, by the sign of the momentum.

    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, with $u_t$ of `ScaleByLion`. It wants a learning rate some 3 to
    10 times smaller than Adam's, and a weight decay as much larger.

    Args:
        learning_rate: $\eta$.
        b1: the weight of the momentum in the direction.
        b2: the decay of the momentum.
        mu_dtype: the dtype of the momentum; by default the parameter's.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.

    References:
        Chen et al., [Symbolic Discovery of Optimization Algorithms](https://arxiv.org/abs/2302.06675), 2023.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-3)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)

    def transform(self) -> Chain:
        return Chain(
            ScaleByLion(self.b1, self.b2, self.mu_dtype),
            AddDecayedWeights(self.weight_decay, self.mask),
            ScaleByLearningRate(self.learning_rate),
        )
