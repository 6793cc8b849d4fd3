"""Adam, NAdam, AdamW and NAdamW, with the pieces that AdaBelief, AMSGrad, RAdam and Yogi use too."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx

from .. import authoring as ma
from .._protocol.leafwise import StateT


class ScaleByAdamState(ma.AbstractState):
    """State of `ScaleByAdam` and its relatives: step count, first moment `mu`, second moment `nu`."""

    optax_fields = ("count", "mu", "nu")

    mu: ma.PyTree = ma.like_params(moment=1.0)
    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AdamNumbers(NamedTuple):
    """Numbers shared by all leaves in a step of Adam: weights of the new update, and bias corrections."""

    c1: ma.Array
    c2: ma.Array
    bias1: ma.Array
    bias2: ma.Array
    bias1_next: ma.Array


def adam_numbers(b1: Any, b2: Any, count: Any) -> AdamNumbers:
    """The shared numbers of the step that follows after `count` steps."""
    t = count + 1
    return AdamNumbers(1 - b1, 1 - b2, ma.bias(b1, t), ma.bias(b2, t), bias1_next=ma.bias(b1, t + 1))


class AbstractAdamRule(ma.AbstractLeafwise[StateT]):
    """A rule with the two moments and the bias corrections of Adam."""

    b1: eqx.AbstractVar[ma.Number]
    b2: eqx.AbstractVar[ma.Number]

    def prepare(self, count):
        """Return the numbers of this step."""
        return adam_numbers(self.b1, self.b2, count)


def corrected_mean(now: AdamNumbers, b1: Any, mu: ma.Array, g: ma.Array, nesterov: bool) -> ma.Array:
    """The bias-corrected first moment; with `nesterov`, the one of NAdam."""
    if nesterov:
        # Dozat corrects the momentum for the step that it looks ahead to, and the gradient for this one.
        return b1 * mu / now.bias1_next + now.c1 * g / now.bias1
    return mu / now.bias1


class AbstractNarrowMoments(ma.AbstractMoments):
    """The hyperparameters of two moments, and the dtype of the first.

    Args:
        mu_dtype: dtype of the first moment; by default that of the parameters.
    """

    _: ma.KW_ONLY
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class AbstractAdam(ma.AbstractMoments):
    r"""The hyperparameters of Adam.

    Args:
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
    """

    _: ma.KW_ONLY
    eps_root: ma.Number = ma.number(0.0)
    mu_dtype: ma.DTypeLike | None = ma.static(None)


class ScaleByAdam(ma.AbstractNesterov, AbstractAdam, AbstractAdamRule[ScaleByAdamState]):
    r"""Divides the first moment of the updates by the root of their second moment: the direction of Adam and NAdam.

    $$
    \begin{aligned}
    m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) |g_t|^2 \\
    \hat m_t &= m_t / (1 - \beta_1^t), \qquad \hat v_t = v_t / (1 - \beta_2^t) \\
    u_t &= \hat m_t / (\sqrt{\hat v_t + \bar\varepsilon} + \varepsilon)
    \end{aligned}
    $$

    With `nesterov`, $\hat m_t = \beta_1 m_t / (1 - \beta_1^{t+1}) + (1 - \beta_1) g_t / (1 - \beta_1^t)$, as in Dozat's
    NAdam.

    Args:
        b1: exponential decay rate $\beta_1$ of the first moment.
        b2: exponential decay rate $\beta_2$ of the second moment.
        eps: $\varepsilon$, added to the denominator outside the root.
        eps_root: $\bar\varepsilon$, added to the second moment inside the root.
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        nesterov: whether to use Nesterov momentum.
        corrected_eps: whether $\varepsilon$ is added after the bias correction, as in Adam. Otherwise it is added
            before, $(\sqrt{v_t} + \varepsilon) / \sqrt{1 - \beta_2^t}$, as in the authors' code of GaLore.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014.
    """

    _: ma.KW_ONLY
    corrected_eps: bool = ma.static(True)

    def init_leaf(self, p):
        # `nu` is float32 whatever `mu_dtype` is: with the 8 bits of bfloat16, `0.999 * nu + 0.001 * g²` rounds to `nu`.
        return ScaleByAdamState(mu=ma.zeros_in(p, self.mu_dtype), nu=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.b1, s.mu, g, now.c1)
        nu = ma.moment(self.b2, s.nu, ma.abs_sq(g), now.c2)
        mu_hat = corrected_mean(now, self.b1, mu, g, self.nesterov)
        # The scalars come first, and the corrections divide: other orders cost XLA:CPU one kernel more for each shape
        # (`docs/design_edges.md`, "Compilation cost").
        nu_hat = nu / now.bias2
        eps = self.eps if self.corrected_eps else self.eps / ma.safe_sqrt(now.bias2)
        u = mu_hat / (eps + ma.safe_sqrt(self.eps_root + nu_hat))
        return u, ScaleByAdamState(mu=mu, nu=nu)


class Adam(ma.AbstractNesterov, AbstractAdam, ma.AbstractRated):
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
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        nesterov: whether to use Nesterov momentum.

    References:
        Kingma and Ba, [Adam: A Method for Stochastic Optimization](https://arxiv.org/abs/1412.6980), 2014.
    """

    direction = ScaleByAdam


class NAdam(AbstractAdam, ma.AbstractRated):
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
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016.
    """

    direction = ScaleByAdam
    nesterov: ClassVar[bool] = True


class AdamW(ma.AbstractNesterov, ma.AbstractDecayedByName, AbstractAdam, ma.AbstractRated):
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
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.
        nesterov: whether to use Nesterov momentum.

    References:
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    direction = ScaleByAdam
    _: ma.KW_ONLY
    weight_decay: ma.Number = ma.number(1e-4)


class NAdamW(ma.AbstractDecayedByName, AbstractAdam, ma.AbstractRated):
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
        mu_dtype: dtype of the first moment; by default that of the parameters. The second moment is stored in at least
            float32.
        weight_decay: weight decay coefficient $\lambda$, multiplied by the learning rate.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Dozat, [Incorporating Nesterov Momentum into Adam](https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ), 2016;
        Loshchilov and Hutter, [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101), 2017.
    """

    direction = ScaleByAdam
    nesterov: ClassVar[bool] = True
    _: ma.KW_ONLY
    weight_decay: ma.Number = ma.number(1e-4)
