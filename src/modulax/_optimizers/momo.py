"""The optimizers MoMo and MoMoAdam."""

from typing import ClassVar

import equinox as eqx

from .._containers.chain import Chain
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.optimizer import AbstractOptimizer
from .._support.checks import DECAY
from .._support.types import Follow
from .._transforms.momo import ScaleByMoMo, ScaleByMoMoAdam
from .._transforms.scaling import Scale


class MoMo(AbstractOptimizer):
    r"""SGD with momentum and an adaptive learning rate (Polyak-type step size), computed from the loss.

        optimizer = MoMo(1.0)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    \begin{aligned}
    \bar f_t &= \beta \bar f_{t-1} + (1 - \beta) f_t, \qquad
        \gamma_t = \beta \gamma_{t-1} + (1 - \beta) \langle g_t, w_t \rangle \\
    m_t &= \beta m_{t-1} + (1 - \beta) g_t, \qquad \sigma = 1 + \eta \lambda \\
    \tau_t &= \min\left(\eta, \frac{(\sigma (\bar f_t - \gamma_t - f^\star) + \langle m_t, w_t \rangle)_+}{\|m_t\|^2}
        \right) \\
    w_{t+1} &= (w_t - \tau_t m_t) / \sigma
    \end{aligned}
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$. In the first step $\beta = 0$. Inner products and norms are
    over all parameters. With `follow="optax"`, $w_{t+1} = w_t / \sigma - \tau_t m_t$.

    With `adapt_lower_bound`, $f^\star$ changes twice in each step, but never below `lower_bound`. Let
    $h_t = \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle$. If $h_t < \sigma f^\star$, then
    $f^\star \leftarrow h_t / (2 \sigma)$ before the step. After it,
    $f^\star \leftarrow \bar f_t - \gamma_t + \langle m_t, w_t \rangle - \frac12 \tau_t \|m_t\|^2$.

    `update` and `step` need the loss, as `value`.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        beta: exponential decay rate $\beta$ of the averages.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)

    learning_rate: Hyperparameter = number(1.0)
    beta: Hyperparameter = number(0.9, needs=DECAY)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByMoMo), Scale(-1.0))


class MoMoAdam(AbstractOptimizer):
    r"""Adam with an adaptive learning rate (Polyak-type step size), computed from the loss.

        optimizer = MoMoAdam(1e-2)
        params, state = optimizer.step(grads, state, params, value=loss)

    $$
    \begin{aligned}
    \bar f_t &= \beta_1 \bar f_{t-1} + (1 - \beta_1) f_t, \qquad
        \gamma_t = \beta_1 \gamma_{t-1} + (1 - \beta_1) \langle g_t, w_t \rangle \\
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \rho &= 1 - \beta_1^t, \qquad D = \varepsilon + \sqrt{v_t / (1 - \beta_2^t)}, \qquad \sigma = 1 + \eta \lambda \\
    \tau_t &= \min\left(\frac{\eta}{\rho}, \frac{(\sigma (\bar f_t - \gamma_t - \rho f^\star) + \langle m_t, w_t
        \rangle)_+}{\langle m_t, m_t / D \rangle} \right) \\
    w_{t+1} &= (w_t - \tau_t m_t / D) / \sigma
    \end{aligned}
    $$

    with $f_t$ the loss and $g_t$ the gradient at $w_t$, $t = 1, 2, \dots$, and all averages zero at $t = 0$. Inner
    products are over all parameters. With `follow="optax"`, $w_{t+1} = w_t / \sigma - \tau_t m_t / D$.

    With `adapt_lower_bound`, $f^\star$ changes twice in each step, but never below `lower_bound`. Let
    $h_t = \sigma (\bar f_t - \gamma_t) + \langle m_t, w_t \rangle$. If $h_t < \sigma \rho f^\star$, then
    $f^\star \leftarrow h_t / (2 \rho \sigma)$ before the step. After it, $f^\star \leftarrow (\bar f_t - \gamma_t +
    \langle m_t, w_t \rangle - \frac12 \tau_t \langle m_t, m_t / D \rangle) / \rho$.

    `update` and `step` need the loss, as `value`.

    Args:
        learning_rate: $\eta$, the largest step size, a number or a schedule; it may be large.
        b1: exponential decay rate $\beta_1$ of the first moment and the other averages.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        lower_bound: $f^\star$, a lower bound of the loss; zero is often a good choice.
        weight_decay: coefficient $\lambda$ of the proximal weight decay, multiplied by the learning rate $\eta$.
        adapt_lower_bound: whether to estimate $f^\star$ while training.
        follow: `"paper"`, or `"optax"` for its weight decay.

    References:
        Schaipp et al., [MoMo: Momentum Models for Adaptive Learning Rates](https://arxiv.org/abs/2305.07583), 2023.
    """

    needs: ClassVar[tuple[str, ...]] = ("value",)

    learning_rate: Hyperparameter = number(1e-2)
    b1: Hyperparameter = number(0.9, needs=DECAY)
    b2: Hyperparameter = number(0.999, needs=DECAY)
    eps: Hyperparameter = number(1e-8)
    lower_bound: Hyperparameter = number(0.0)
    weight_decay: Hyperparameter = number(0.0)
    adapt_lower_bound: bool = eqx.field(static=True, default=False)
    follow: Follow = followed()

    def transform(self) -> Chain:
        return Chain(self._part(ScaleByMoMoAdam), Scale(-1.0))
