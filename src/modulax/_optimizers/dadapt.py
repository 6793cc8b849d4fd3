"""The optimizer D-Adapted AdamW."""

from .._protocol.fields import Hyperparameter, Numbers, followed, number, numbers
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY, POSITIVE
from .._support.types import FollowReference
from .._transforms.dadapt import ScaleByDAdaptAdam
from .._transforms.regularization import AddDecayedWeights
from .._transforms.step_with_decay import StepWithDecay


class DAdaptAdamW(AbstractOptimizer):
    r"""AdamW with a step size estimated by D-Adaptation, so that there is no learning rate to tune.

        optimizer = DAdaptAdamW(schedules.CosineDecay(1.0, 10_000), weight_decay=0.01)

    $$
    \begin{aligned}
    m_{t+1} &= \beta_1 m_t + (1 - \beta_1) \eta_t d_t g_t \\
    v_{t+1} &= \beta_2 v_t + (1 - \beta_2) |g_t|^2 \\
    s_{t+1} &= \sqrt{\beta_2} s_t + (1 - \sqrt{\beta_2}) \eta_t d_t g_t \\
    r_{t+1} &= \sqrt{\beta_2} r_t
        + (1 - \sqrt{\beta_2}) \eta_t d_t \langle g_t, s_t / (\sqrt{v_t} + \varepsilon) \rangle \\
    d_{t+1} &= \max(d_t, r_{t+1} / ((1 - \sqrt{\beta_2}) \|s_{t+1}\|_1)) \\
    w_{t+1} &= w_t - m_{t+1} / (\sqrt{v_{t+1}} + \varepsilon) - \eta_t d_t \lambda w_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 0, 1, \dots$, and $m_0 = v_0 = s_0 = r_0 = 0$. Inner product and norm are
    over all parameters. The authors' package computes the same with `DAdaptAdam(decouple=True)`.

    With `follow="paper"`, $r$ is weighted by $v_{t+1}$ instead of $v_t$. With `follow="optax"`, $\eta_t$ is multiplied
    by $\sqrt{1 - \beta_2^{t+1}} / (1 - \beta_1^{t+1})$, as with the package's `use_bias_correction=True`.

    Args:
        learning_rate: learning rate $\eta$, a factor of the estimated step size; recommended is 1, or a schedule that
            decays from 1 to 0.
        betas: exponential decay rates $\beta_1$ and $\beta_2$ of the first and the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        estim_lr0: initial estimate $d_0$ of the distance, which should be too small.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the step size $\eta_t d_t$.
        follow: `"reference"`, the authors' code; `"paper"` for its weight of $r$, or `"optax"` for its bias
            corrections.

    References:
        Defazio and Mishchenko, [Learning-Rate-Free Learning by D-Adaptation](https://arxiv.org/abs/2301.07733), 2023,
        and the authors' [code](https://github.com/facebookresearch/dadaptation).
    """

    learning_rate: Hyperparameter = number(1.0)
    betas: Numbers = numbers((0.9, 0.999), needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    estim_lr0: Hyperparameter = number(1e-6, needs=POSITIVE)
    weight_decay: Hyperparameter = number(0.0)
    follow: FollowReference = followed("reference", "paper", "optax")

    def transform(self) -> StepWithDecay:
        b1, b2 = self.betas
        rule = ScaleByDAdaptAdam(self.learning_rate, b1, b2, self.eps, self.estim_lr0, follow=self.follow)
        return StepWithDecay(rule, AddDecayedWeights(self.weight_decay))
