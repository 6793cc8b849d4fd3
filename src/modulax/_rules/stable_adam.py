"""StableAdamW: AdamW with update clipping."""

import jax.numpy as jnp

from .. import authoring as ma
from .._transforms.clipping import block_rms, shrinking, shrunk
from .._transforms.regularization import AbstractDecayingRule, split_decay
from .adam import ScaleByAdamState, adam_numbers


class AbstractStableAdam(ma.AbstractMoments):
    r"""The hyperparameters of StableAdamW.

    Args:
        clip_threshold: $d$, the largest root mean square of the gradient over the root of its second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
    """

    b2: ma.Number = ma.number(0.99, needs=ma.DECAY)
    _: ma.KW_ONLY
    clip_threshold: ma.Number = ma.number(1.0, needs=ma.NON_NEGATIVE)
    mu_dtype: ma.DTypeLike | None = ma.static(None)
    mask: ma.Mask = ma.mask()


class ScaleByStableAdam(AbstractStableAdam, AbstractDecayingRule[ScaleByAdamState]):
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
        eps: $\varepsilon$, added to the denominator outside the root.
        clip_threshold: $d$, the largest root mean square of the gradient over the root of its second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_decay: weight decay coefficient $\lambda$; `update` then needs the parameters.

    References:
        Wortsman et al., [Stable and low-precision training for large-scale vision-language
        models](https://arxiv.org/abs/2304.13013), 2023.
    """

    _: ma.KW_ONLY
    weight_decay: ma.OptionalNumber = ma.number(None, optional=True)

    def init_leaf(self, p):
        return ScaleByAdamState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def prepare(self, count):
        return adam_numbers(self.b1, self.b2, count)

    def update_leaf(self, now, g, s, p):
        now, decays = split_decay(now)
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        nu = ma.moment(self.b2, s.nu, ma.abs_sq(g), now.c2)
        root = ma.safe_sqrt(nu / now.bias2)
        # `eps` may be zero, and the root of an entry without gradients is zero.
        rms = block_rms(ma.ratio(g, jnp.maximum(root, self.eps)))
        u = self.decay_of(decays, p) + mu / now.bias1 / (self.eps + root)
        return shrunk(u, shrinking(self.clip_threshold, rms)), ScaleByAdamState(mu=mu, nu=nu)


class StableAdamW(AbstractStableAdam, ma.AbstractRated):
    r"""AdamW with the update clipping of Adafactor, which prevents loss spikes without gradient clipping.

        optimizer = StableAdamW(1e-3, weight_decay=0.1)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    \operatorname{RMS}_t^2 &= \frac{1}{n} \sum_{i=1}^n \frac{|g_{t,i}|^2}{\max(\hat v_{t,i}, \varepsilon^2)} \\
    \eta_t &= \eta / \max(1, \operatorname{RMS}_t / d) \\
    w_{t+1} &= w_t - \eta_t \left( \frac{\hat m_t}{\sqrt{\hat v_t} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. After a sudden change of the gradient,
    $v_t$ is too small for a while, and the step of AdamW is too large; $\operatorname{RMS}_t$, of each array on its
    own, measures by how much. The reduced learning rate $\eta_t$ is that of the weight decay too.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        clip_threshold: $d$, the largest root mean square of the gradient over the root of its second moment.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the reduced learning rate.

    References:
        Wortsman et al., [Stable and low-precision training for large-scale vision-language
        models](https://arxiv.org/abs/2304.13013), 2023.
    """

    direction = ScaleByStableAdam
    _: ma.KW_ONLY
    weight_decay: ma.Number = ma.number(1e-2)
