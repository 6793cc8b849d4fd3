"""Adafactor."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.masks import as_rule
from .._protocol.optimizer import AbstractOptimizer
from .._support.arithmetic import default_float
from .._support.checks import DECAY, NON_NEGATIVE
from .._support.types import Follow
from .._transforms.adafactor import ScaleByFactoredRMS
from .._transforms.clipping import ClipByBlockRMS
from .._transforms.momentum import Ema
from .._transforms.param_block import ScaleByParamBlockRMS
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import Scale, ScaleByLearningRate


def relative_step(step: Any) -> Any:
    r"""Adafactor's own step size: $\min(10^{-2}, 1 / \sqrt t)$, with $t = 1$ at the first step."""
    return jnp.minimum(1e-2, 1 / jnp.sqrt(1 + jnp.asarray(step, default_float())))


class Adafactor(AbstractOptimizer):
    r"""Steps like Adam's without the memory: of the mean square only the means of rows and columns are kept.

    $$
    \begin{aligned}
    u_t &= g_t / \sqrt{\hat V_t} & &\text{as in } \texttt{ScaleByFactoredRMS} \\
    \hat u_t &= u_t / \max(1, \operatorname{RMS}(u_t) / d) \\
    w_{t+1} &= w_t - \eta_t \max(\epsilon_2, \operatorname{RMS}(w_t))\, \hat u_t - \lambda w_t
    \end{aligned}
    $$

    with $\epsilon_2 = 10^{-3}$. The momentum, if any, is a running average of the scaled steps; the weight decay is
    not multiplied by the learning rate.

    State: a matrix of $n \times m$ that is factored needs $4 (n + m)$ bytes, where Adam needs $8 n m$; every other
    array 4 bytes for each entry. Momentum costs as much as the parameters, in `dtype_momentum`.

    Args:
        learning_rate: $\eta_t$, in proportion to the parameters. None takes the paper's $\min(10^{-2}, 1 / \sqrt t)$.
        min_dim_size_to_factor: the length that the two longest axes must have, for an array to be factored.
        decay_rate: the exponent $c$ of the decay $1 - t^{-c}$ of the mean square.
        decay_offset: the number of steps that do not count for it, because another run has done them.
        multiply_by_parameter_scale: whether the steps are in proportion to the parameters.
        clipping_threshold: $d$; None for no clipping.
        momentum: the decay of the average; None for none, and no state for it.
        dtype_momentum: the dtype of the average; None for the parameter's.
        weight_decay_rate: $\lambda$; None for none.
        eps: added to the squares.
        factored: whether to factor at all.
        mask: the leaves that decay, as in `AddDecayedWeights`; by default all.
        follow: what a `learning_rate` of None is: the paper's step size, or 1, as in optax.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018.
    """

    cites: ClassVar[tuple[str, ...]] = ("shazeer2018",)

    learning_rate: Hyperparameter | None = number(None, optional=True)
    min_dim_size_to_factor: int = eqx.field(static=True, default=128)
    decay_rate: Hyperparameter = number(0.8)
    decay_offset: Hyperparameter = number(0)
    multiply_by_parameter_scale: bool = eqx.field(static=True, default=True)
    clipping_threshold: Hyperparameter | None = number(1.0, needs=NON_NEGATIVE, optional=True)
    momentum: Hyperparameter | None = number(None, needs=DECAY, optional=True)
    dtype_momentum: DTypeLike | None = eqx.field(static=True, default=jnp.float32)
    weight_decay_rate: Hyperparameter | None = number(None, optional=True)
    eps: Hyperparameter = number(1e-30)
    factored: bool = eqx.field(static=True, default=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_rule)
    follow: Follow = followed()

    def transform(self) -> Chain:
        rate = self.learning_rate
        if rate is None:
            rate = relative_step if self.follow == "paper" else 1.0
        scaling = ScaleByFactoredRMS(
            self.factored, self.decay_rate, self.decay_offset, self.min_dim_size_to_factor, self.eps
        )
        clip = [] if self.clipping_threshold is None else [ClipByBlockRMS(self.clipping_threshold)]
        proportion = [ScaleByParamBlockRMS()] if self.multiply_by_parameter_scale else []
        average = [] if self.momentum is None else [Ema(self.momentum, False, self.dtype_momentum)]
        decay = [] if self.weight_decay_rate is None else [AddDecayedWeights(self.weight_decay_rate, self.mask)]
        steps = ScaleByLearningRate(rate, flip_sign=False)
        return Chain(scaling, *clip, steps, *proportion, *average, *decay, Scale(-1.0))
