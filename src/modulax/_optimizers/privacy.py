"""The optimizer DPSGD: gradient descent with differential privacy."""

from typing import Any, ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import NON_NEGATIVE
from .._transforms.privacy import DifferentiallyPrivateAggregate, secret_key
from .sgd import SGD


class DPSGD(AbstractOptimizer):
    r"""Differentially private SGD (DP-SGD): clips per-example gradients and adds Gaussian noise to their mean.

        optimizer = DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=1.0, key=jax.random.key(1))
        params, state = optimizer.step(per_example_grads, state, params)

    $$
    \begin{aligned}
    \bar g_t &= \frac 1 n \Bigl( \sum_{i=1}^n g_{t,i} \min(1, C / \|g_{t,i}\|_2) + \mathcal N(0, \sigma^2 C^2 I)
        \Bigr) \\
    v_t &= \mu v_{t-1} + \bar g_t \\
    w_{t+1} &= w_t - \eta\, v_t
    \end{aligned}
    $$

    with $g_{t,i}$ the gradient of example $i$ at $w_t$, its norm over all parameters, and $v_0 = 0$. Without
    `momentum`, $v_t = \bar g_t$; with `nesterov`, $w_{t+1} = w_t - \eta (\mu v_t + \bar g_t)$.

    `update` and `step` take per-example gradients: every array has a leading axis of examples.
    `DifferentiallyPrivateAggregate` tells how to compute them.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        l2_norm_clip: largest norm $C$ of the gradient of one example.
        noise_multiplier: standard deviation $\sigma$ of the noise, relative to $C$.
        key: a seed, or a JAX key. It determines the noise and must stay secret, so there is no default.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.

    References:
        Abadi et al., [Deep Learning with Differential Privacy](https://arxiv.org/abs/1607.00133), 2016.
    """

    needs: ClassVar[tuple[str, ...]] = ("real",)

    learning_rate: Hyperparameter = required_number()
    l2_norm_clip: Hyperparameter = required_number(needs=NON_NEGATIVE)
    noise_multiplier: Hyperparameter = required_number(needs=NON_NEGATIVE)
    key: Any = secret_key()
    momentum: OptionalNumber = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,)

    def transform(self) -> Chain:
        aggregate = DifferentiallyPrivateAggregate(self.l2_norm_clip, self.noise_multiplier, self.key)
        return Chain(aggregate, **SGD(self.learning_rate, self.momentum, self.nesterov).transform().parts)
