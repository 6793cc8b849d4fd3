"""Gradient descent with differential privacy."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.privacy import DifferentiallyPrivateAggregate, secret_key
from .sgd import SGD


class DPSGD(AbstractOptimizer):
    r"""Gradient descent with differential privacy: `SGD` on what `DifferentiallyPrivateAggregate` returns.

    `update` and `step` are given the gradient of each example by itself, on a leading axis of every array.

    Args:
        learning_rate: the step size.
        l2_norm_clip: the bound $C$ on the norm of one example's gradient.
        noise_multiplier: the standard deviation of the noise as a multiple of $C$.
        key: a seed, or a JAX key. Whoever knows it knows the noise, so that there is no default.
        momentum: the decay of the momentum; None for none, and no state for it.
        nesterov: whether the momentum looks ahead.

    References:
        Abadi et al., [Deep Learning with Differential Privacy](https://arxiv.org/abs/1607.00133), 2016.
    """

    takes_complex: ClassVar[bool] = False

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,)

    cites: ClassVar[tuple[str, ...]] = ("abadi2016",)

    learning_rate: Hyperparameter = number()
    l2_norm_clip: Hyperparameter = number(needs=NON_NEGATIVE)
    noise_multiplier: Hyperparameter = number(needs=NON_NEGATIVE)
    key: Any = secret_key()
    momentum: Hyperparameter | None = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        aggregate = DifferentiallyPrivateAggregate(self.l2_norm_clip, self.noise_multiplier, self.key)
        return Chain(aggregate, *SGD(self.learning_rate, self.momentum, self.nesterov).transform())
