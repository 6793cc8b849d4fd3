"""The direction of StableAdamW: Adam with update clipping."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import DTypeLike

from .._protocol.fields import Number, OptionalNumber, number
from .._protocol.masks import as_labels
from .._support.arithmetic import abs_sq, moment, ratio, safe_sqrt, second_moment_like, zeros_in
from .._support.checks import DECAY, NON_NEGATIVE
from .adam import ScaleByAdamState, adam_numbers
from .clipping import shrinking, shrunk
from .param_block import block_rms
from .regularization import AbstractDecayingRule, split_decay


class ScaleByStableAdam(AbstractDecayingRule[ScaleByAdamState]):
    r"""Adam's direction, reduced in arrays whose second moment lags behind the gradient: the direction of StableAdamW.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \operatorname{RMS}_t^2 &= \frac{1}{n} \sum_{i=1}^n \frac{|g_{t,i}|^2}{\max(\hat v_{t,i}, \varepsilon^2)} \\
    u_t &= \frac{1}{\max(1, \operatorname{RMS}_t / d)} \left( \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon}
        + \lambda w_t \right)
    \end{aligned}
    $$

    The weight decay $\lambda w_t$ of the parameter $w_t$ is reduced with the direction, as the learning rate is in the
    paper.

    `ClipByBlockRMS` after `ScaleByAdam` bounds the root mean square of $u_t$ instead, which the first moment has
    averaged already.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        clip_threshold: $d$, the largest root mean square of the gradient over the root of its second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        weight_decay: weight decay coefficient $\lambda$; `update` then needs the parameters.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Wortsman et al., [Stable and low-precision training for large-scale vision-language
        models](https://arxiv.org/abs/2304.13013), 2023.
    """

    b1: Number = number(0.9, needs=DECAY)
    b2: Number = number(0.99, needs=DECAY)
    eps: Number = number(1e-8)
    clip_threshold: Number = number(1.0, needs=NON_NEGATIVE)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: KW_ONLY
    weight_decay: OptionalNumber = number(None, optional=True)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=zeros_in(p, self.mu_dtype), nu=second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        now, decays = split_decay(now)
        mu = moment(self.b1, s.mu, g, now.c1)
        nu = moment(self.b2, s.nu, abs_sq(g), now.c2)
        root = safe_sqrt(nu / now.bias2)
        # `eps` may be zero, and the root of an entry without gradients is zero.
        rms = block_rms(ratio(g, jnp.maximum(root, self.eps)))
        u = self.decay_of(decays, p) + mu / now.bias1 / (self.eps + root)
        return shrunk(u, shrinking(self.clip_threshold, rms)), ScaleByAdamState(mu=mu, nu=nu)
