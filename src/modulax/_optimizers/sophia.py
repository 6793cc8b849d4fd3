"""Sophia: steps divided by the curvature of the loss."""

from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform
from .._support.checks import AT_LEAST_ONE, DECAY, POSITIVE
from .._support.types import Follow
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.sophia import HutchinsonDiagonal, ScaleBySophia


class Sophia(AbstractOptimizer):
    r"""Sophia-H: the mean gradient over an estimate of the Hessian's diagonal, clipped, with decoupled weight decay.

    $w_{t+1} = w_t - \eta (u_t + \lambda w_t)$, with $u_t$ of `ScaleBySophia`. Every call needs the objective, a
    function of the parameters alone; see `HutchinsonDiagonal` on how to give it the batch:

        optimizer = Sophia(1e-3)
        obj_fn = jax.tree_util.Partial(loss, batch=batch)
        params, state = optimizer.step(grads, state, params, obj_fn=obj_fn)

    Args:
        learning_rate: $\eta$.
        b1: the decay of the mean gradient.
        b2: the decay of the mean of the estimates.
        eps: the smallest denominator.
        weight_decay: $\lambda$, which is multiplied by the learning rate.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        gamma: the factor of the curvature in the denominator.
        clip_threshold: the largest step in units of the learning rate, or None not to clip.
        update_interval: the number of steps from one estimate to the next.
        hessian_diagonal_fn: the transform that estimates the diagonal of the Hessian.
        mu_dtype: the dtype of the mean gradient; by default the parameter's.
        follow: `"paper"`, or `"optax"`, which uses estimates one step later and corrects the bias of the mean.

    References:
        Liu et al., [Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
        Pre-training](https://arxiv.org/abs/2305.14342), 2023.
    """

    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.965, needs=DECAY)
    b2: Hyperparameter = number(0.99, needs=DECAY)
    eps: Hyperparameter = number(1e-8, needs=POSITIVE)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    gamma: Hyperparameter = number(0.01)
    clip_threshold: Hyperparameter | None = number(1.0, optional=True)
    update_interval: Hyperparameter = number(10, needs=AT_LEAST_ONE)
    hessian_diagonal_fn: AbstractTransform = HutchinsonDiagonal()
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    follow: Follow = followed()

    def transform(self) -> Chain:
        sophia = ScaleBySophia(
            self.b1,
            self.b2,
            self.eps,
            self.gamma,
            self.clip_threshold,
            self.update_interval,
            self.hessian_diagonal_fn,
            self.mu_dtype,
            follow=self.follow,
        )
        decay = AddDecayedWeights(self.weight_decay, self.mask)
        return Chain(sophia, decay, ScaleByLearningRate(self.learning_rate))
