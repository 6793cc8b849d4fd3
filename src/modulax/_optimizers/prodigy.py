"""The optimizer Prodigy."""

from typing import Any

import equinox as eqx

from .._protocol.fields import Hyperparameter, Numbers, OptionalNumber, followed, number, numbers
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, POSITIVE
from .._support.types import FollowReference
from .._transforms.prodigy import ScaleByProdigy
from .._transforms.regularization import AddDecayedWeights
from .._transforms.step_with_decay import StepWithDecay


class Prodigy(AbstractOptimizer):
    r"""AdamW that estimates its step size while training, so that there is no learning rate to tune.

        optimizer = Prodigy(schedules.CosineDecay(1.0, 10_000), weight_decay=0.01)

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) d_t^2 |g_t|^2 \\
    r_{t+1} &= \beta_3 r_t + \eta_t d_t^2 \langle g_t, w_0 - w_t \rangle \\
    s_{t+1} &= \beta_3 s_t + \eta_t d_t^2 g_t \\
    d_{t+1} &= \max(d_t, c\, r_{t+1} / \|s_{t+1}\|_1) \\
    w_{t+1} &= w_t - \eta_t d_t \left( \frac{m_{t+1}}{\sqrt{v_{t+1}} + d_{t+1} \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and $m_0 = v_0 = s_0 = r_0 = 0$. Inner product and norm are
    over all parameters. The authors' package, prodigyopt, computes the same by default.

    With `follow="paper"`, $\varepsilon$ is multiplied by $d_t$ instead of $d_{t+1}$. With `follow="optax"`, $\eta_t$ is
    multiplied by $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$, as with the package's `use_bias_correction=True`.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        betas: exponential decay rates $\beta_1$ and $\beta_2$ of the first and the second moment.
        beta3: exponential decay rate $\beta_3$ of $r$ and $s$; by default $\sqrt{\beta_2}$.
        eps: $\varepsilon$, multiplied by the estimate and added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        estim_lr_coef: factor $c$ of the estimates, the hyperparameter to tune if one has to be.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\eta_t d_t$.
        safeguard_warmup: whether to leave $\eta_t$ out of $s$, for use with learning rate warm-up.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        follow: `"reference"`, the authors' code; `"paper"` for its $\varepsilon$, or `"optax"` for its bias
            corrections.

    References:
        Mishchenko and Defazio, [Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner](https://arxiv.org/abs/2306.06101), 2023, and the authors'
        [code](https://github.com/konstmish/prodigy).
    """

    learning_rate: Hyperparameter = number(1.0)
    betas: Numbers = numbers((0.9, 0.999), needs=DECAY)
    beta3: OptionalNumber = number(None, needs=DECAY, optional=True)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    estim_lr_coef: Hyperparameter = number(1.0)
    weight_decay: Hyperparameter = number(0.0)
    safeguard_warmup: bool = eqx.field(static=True, default=False)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    follow: FollowReference = followed("reference", "paper", "optax")

    def transform(self) -> StepWithDecay:
        b1, b2 = self.betas
        rule = self._part(ScaleByProdigy, b1=b1, b2=b2)
        return StepWithDecay(rule, AddDecayedWeights(self.weight_decay, self.mask))
