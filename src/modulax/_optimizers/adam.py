"""The optimizers Adam, AdamW, NAdam and NAdamW."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx
from jaxtyping import DTypeLike

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, number, required_number
from .._protocol.masks import as_labels
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._transforms.adam import ScaleByAdam
from .._transforms.scaling import ScaleByLearningRate
from .decayed import decayed


class Adam(AbstractOptimizer):
    r"""The standard adaptive optimizer: the first moment of the gradients, divided by the root of their second moment.

        optimizer = Adam(1e-3)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta\, \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. With `nesterov`,
    $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$. For weight decay use `AdamW`
    rather than an $L_2$ penalty in the loss.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        nesterov: whether to use Nesterov momentum. `NAdam` is the same with `nesterov=True`.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    nesterov: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov),
            ScaleByLearningRate(self.learning_rate),
        )


class NAdam(AbstractOptimizer):
    r"""Adam with Nesterov momentum.

        optimizer = NAdam(1e-3)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= \frac{\beta_1 m_t}{1 - \beta_1^{t+1}} + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
        \hat v_t = \frac{v_t}{1 - \beta_2^t} \\
    w_{t+1} &= w_t - \eta\, \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. This is Dozat's equation with a constant
    $\beta_1$; torch and Keras use a momentum schedule in addition.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    def transform(self) -> Chain:
        return Chain(
            ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, nesterov=True),
            ScaleByLearningRate(self.learning_rate),
        )


class AdamW(AbstractOptimizer):
    r"""Adam with decoupled weight decay, the usual first choice for transformers and most other models.

        optimizer = AdamW(3e-4, b2=0.95, weight_decay=0.1, mask=decays)
        params, state = optimizer.step(grads, state, params)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_t}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. With `nesterov`,
    $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$. The default of $\lambda$ is
    optax's; torch's is 0.01.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to use Nesterov momentum. `NAdamW` is the same with `nesterov=True`.

    References:
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)
    nesterov: bool = eqx.field(static=True, default=False)

    def transform(self) -> Chain:
        return decayed(self, ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, self.nesterov))


class NAdamW(AbstractOptimizer):
    r"""AdamW with Nesterov momentum, which is NAdam with decoupled weight decay.

        optimizer = NAdamW(1e-3, weight_decay=0.01)

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= \frac{\beta_1 m_t}{1 - \beta_1^{t+1}} + \frac{(1 - \beta_1) g_t}{1 - \beta_1^t}, \qquad
        \hat v_t = \frac{v_t}{1 - \beta_2^t} \\
    w_{t+1} &= w_t - \eta \left( \frac{\hat m_t}{\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon} + \lambda w_t \right)
    \end{aligned}
    $$

    with $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and $m_0 = v_0 = 0$. This is Dozat's equation with a constant
    $\beta_1$; torch and Keras use a momentum schedule in addition.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    learning_rate: Hyperparameter = required_number()
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    _: KW_ONLY
    eps_root: Hyperparameter = number(0.0)
    mu_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    weight_decay: Hyperparameter = number(1e-4)
    mask: Any = eqx.field(static=True, default=None, converter=as_labels)

    def transform(self) -> Chain:
        return decayed(self, ScaleByAdam(self.b1, self.b2, self.eps, self.eps_root, self.mu_dtype, nesterov=True))
