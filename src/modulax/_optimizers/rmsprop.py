"""The optimizer RMSProp."""

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, OptionalNumber, number, required_number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.momentum import Trace
from .._transforms.rmsprop import ScaleByRMS, ScaleByStddev
from .._transforms.scaling import ScaleByLearningRate


class RMSProp(AbstractOptimizer):
    r"""Divides each coordinate by the root mean square of its recent gradients; often used for RNNs and RL.

        optimizer = RMSProp(1e-3, decay=0.9, momentum=0.9)

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    b_t &= \mu b_{t-1} + \eta\, g_t / \sqrt{v_t + \varepsilon} \\
    w_{t+1} &= w_t - b_t
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$ and $t = 1, 2, \dots$. Without `momentum`, $\mu = 0$; with `nesterov`,
    $w_{t+1} = w_t - \mu b_t - \eta\, g_t / \sqrt{v_t + \varepsilon}$. With `centered`, $v_t$ under the root is replaced
    by the variance $v_t - |m_t|^2$, where $m_t = \beta m_{t-1} + (1 - \beta) g_t$. With `eps_in_sqrt=False`, as in
    torch, the denominator is $\sqrt{v_t} + \varepsilon$.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        decay: exponential decay rate $\beta$ of the second moment.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root.
        centered: whether to divide by the standard deviation instead of the root mean square.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.
        bias_correction: whether to divide $v_t$, and $m_t$, by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012;
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    learning_rate: Hyperparameter = required_number()
    decay: Hyperparameter = number(0.9, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    initial_scale: Hyperparameter = number(0.0)
    eps_in_sqrt: bool = eqx.field(static=True, default=True)
    centered: bool = eqx.field(static=True, default=False)
    momentum: OptionalNumber = number(None, optional=True)
    nesterov: bool = eqx.field(static=True, default=False)
    bias_correction: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        scaling = ScaleByStddev if self.centered else ScaleByRMS
        rms = scaling(self.decay, self.eps, self.initial_scale, self.eps_in_sqrt, self.bias_correction)
        rate = ScaleByLearningRate(self.learning_rate)
        return Chain(rms, rate) if self.momentum is None else Chain(rms, rate, Trace(self.momentum, self.nesterov))
