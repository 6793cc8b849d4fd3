"""The optimizer Adafactor, and the learning rate it uses by default."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, followed, number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.arithmetic import default_float
from .._support.checks import DECAY, NEVER_NEGATIVE
from .._support.types import Follow
from .._transforms.adafactor import ScaleByFactoredRMS
from .._transforms.clipping import ClipByBlockRMS
from .._transforms.momentum import Ema
from .._transforms.param_block import ScaleByParamBlockRMS
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import Scale, ScaleByLearningRate


def relative_step(step: Any) -> Any:
    r"""Adafactor's default learning rate, $\min(10^{-2}, 1 / \sqrt t)$, where $t$ is `step + 1`."""
    return jnp.minimum(1e-2, 1 / jnp.sqrt(1 + jnp.asarray(step, default_float())))


class Adafactor(AbstractOptimizer):
    r"""Adam-like optimizer with sublinear memory: stores only row and column means of the second moment.

        optimizer = Adafactor()  # the relative steps of the paper; or Adafactor(1e-2)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    \beta_t &= 1 - t^{-c} \\
    R_t &= \beta_t R_{t-1} + (1 - \beta_t) \tfrac{1}{m} \textstyle\sum_j (|g_t|^2 + \varepsilon)_{ij} \\
    C_t &= \beta_t C_{t-1} + (1 - \beta_t) \tfrac{1}{n} \textstyle\sum_i (|g_t|^2 + \varepsilon)_{ij} \\
    u_t &= g_t / \sqrt{R_t C_t / \operatorname{mean}(R_t)} \\
    \hat u_t &= u_t / \max(1, \operatorname{RMS}(u_t) / d) \\
    s_t &= \eta_t \max(10^{-3}, \operatorname{RMS}(w_t))\, \hat u_t \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) s_t \\
    w_{t+1} &= w_t - m_t - \lambda w_t
    \end{aligned}
    $$

    for a matrix of $n \times m$ entries, with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$. Without `momentum`,
    which is the default, $m_t = s_t$. Arrays that aren't factored, see `min_dim_size_to_factor`, use
    $u_t = g_t / \sqrt{V_t}$ with $V_t = \beta_t V_{t-1} + (1 - \beta_t) (|g_t|^2 + \varepsilon)$. The weight decay
    isn't multiplied by the learning rate.

    State: $4 (n + m)$ bytes for a factored matrix, where Adam needs $8 n m$; 4 bytes per entry for any other array.
    Momentum adds one array of the size of the parameters.

    Args:
        learning_rate: learning rate $\eta_t$, a number or a schedule, relative to the size of the parameters. None for
            the paper's $\min(10^{-2}, 1 / \sqrt t)$.
        min_dim_size_to_factor: smallest length of the second longest axis for which an array is factored.
        decay_rate: exponent $c$ of the decay rate $\beta_t$ of the second moment.
        decay_offset: number of earlier steps, subtracted from the step count in $\beta_t$, for fine-tuning that
            continues a count.
        multiply_by_parameter_scale: whether steps are multiplied by the root mean square of the parameters; if False,
            $s_t = \eta_t \hat u_t$.
        clipping_threshold: $d$, the largest root mean square of an update; None for no clipping.
        momentum: exponential decay rate $\beta_1$ of the momentum; None for no momentum, and no state for it.
        dtype_momentum: dtype of the momentum; None for that of the parameters.
        weight_decay_rate: weight decay coefficient $\lambda$, not multiplied by the learning rate; None for no weight
            decay.
        eps: $\varepsilon$, added to the squared gradients.
        factored: whether to factor the second moment; if False, it is stored in full for every array.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: which learning rate `learning_rate=None` means: the paper's, `"paper"`, or 1, `"optax"`.

    References:
        Shazeer and Stern, [Adafactor: Adaptive Learning Rates with Sublinear Memory
        Cost](https://arxiv.org/abs/1804.04235), 2018.
    """

    learning_rate: OptionalNumber = number(None, optional=True)
    min_dim_size_to_factor: int = eqx.field(static=True, default=128)
    decay_rate: Hyperparameter = number(0.8)
    decay_offset: Hyperparameter = number(0)
    multiply_by_parameter_scale: bool = eqx.field(static=True, default=True)
    clipping_threshold: OptionalNumber = number(1.0, needs=NEVER_NEGATIVE, optional=True)
    momentum: OptionalNumber = number(None, needs=DECAY, optional=True)
    dtype_momentum: DTypeLike | None = eqx.field(static=True, default=jnp.float32)
    weight_decay_rate: OptionalNumber = number(None, optional=True)
    eps: Hyperparameter = number(1e-30)
    factored: bool = eqx.field(static=True, default=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
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
