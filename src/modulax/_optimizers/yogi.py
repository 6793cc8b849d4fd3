"""The optimizer Yogi."""

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import FollowReference
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.yogi import ScaleByYogi


class Yogi(AbstractOptimizer):
    r"""Adam with additive changes of the second moment, so that the effective learning rate can't increase suddenly.

        optimizer = Yogi(1e-2)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= v_{t-1} - (1 - \beta_2) \operatorname{sign}(v_{t-1} - |g_t|^2)\, |g_t|^2 \\
    w_{t+1} &= w_t - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t} \cdot \frac{m_t}{\sqrt{v_t} + \varepsilon}
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, $m_0 = 0$ and $v_0 = 10^{-6}$. With
    `follow="paper"`, there is no bias correction: $w_{t+1} = w_t - \eta\, m_t / (\sqrt{v_t} + \varepsilon)$. With
    `follow="optax"`, $v_t$ is corrected inside the root and $m_0 = 10^{-6}$:

    $$
    w_{t+1} = w_t - \eta \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \varepsilon}
    $$

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: $\beta_2$; the second moment changes by $1 - \beta_2$ times the new square.
        eps: $\varepsilon$, added to the denominator outside the root.
        follow: `"reference"`, the authors' code; `"paper"` for no bias corrections, or `"optax"` for those of $v_t$
            inside the root.

    References:
        Zaheer et al., [Adaptive Methods for Nonconvex
        Optimization](https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization), 2018, and its
        first author's [code](https://github.com/tensorflow/addons/blob/master/tensorflow_addons/optimizers/yogi.py).
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-3)
    follow: FollowReference = followed("reference", "paper", "optax")

    def transform(self) -> Chain:
        direction = ScaleByYogi(self.b1, self.b2, self.eps, follow=self.follow)
        return Chain(direction, ScaleByLearningRate(self.learning_rate))
