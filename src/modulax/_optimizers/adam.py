"""Adam, with Nesterov momentum and with weight decay."""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate


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
