"""RMSProp: updates divided by their root mean square, or by their standard deviation."""

import jax.numpy as jnp

from .. import authoring as ma
from .._support.arithmetic import without_infinities
from .._transforms.momentum import Trace


class ScaleByRMSState(ma.AbstractState):
    """State of `ScaleByRMS`: step count and second moment."""

    optax_fields = ("nu",)

    nu: ma.PyTree = ma.like_params(nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractRMSProp(ma.AbstractFields):
    r"""The hyperparameters of RMSProp.

    Args:
        decay: exponential decay rate $\beta$ of the second moment, and of the first where there is one.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, and not outside.
    """

    decay: ma.Number = ma.number(0.9, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-8)
    initial_scale: ma.Number = ma.number(0.0)
    eps_in_sqrt: bool = ma.static(True)


class AbstractRMS(AbstractRMSProp):
    r"""The hyperparameters of the two directions.

    Args:
        bias_correction: whether to divide the moments by $1 - \beta^t$, to correct the bias of a start at zero.
    """

    bias_correction: bool = ma.static(False)


class ScaleByRMS(AbstractRMS, ma.AbstractLeafwise[ScaleByRMSState]):
    r"""Divides the updates by the root of their second moment: the direction of RMSProp.

    $$
    \begin{aligned}
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t + \varepsilon} \quad\text{or}\quad g_t / (\sqrt{v_t} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: exponential decay rate $\beta$ of the second moment, and of the first where there is one.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, and not outside.
        bias_correction: whether to divide the moments by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012.
    """

    def init_leaf(self, p):
        return ScaleByRMSState(nu=ma.second_moment_like(p, ma.at_start(self.initial_scale)))

    def prepare(self, count):
        return ma.bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        nu = ma.moment(self.decay, s.nu, ma.abs_sq(g))
        nu_hat = nu / now if self.bias_correction else nu
        u = g / root_with_eps(nu_hat, self.eps, self.eps_in_sqrt)
        return u, ScaleByRMSState(nu=nu)


class ScaleByStddevState(ma.AbstractState):
    """State of `ScaleByStddev`: step count, first and second moment."""

    optax_fields = ("mu", "nu")

    # Exact, because a difference of the two is divided by.
    mu: ma.PyTree = ma.like_params(exact=True, moment=1.0)
    nu: ma.PyTree = ma.like_params(exact=True, nonnegative=True)
    count: ma.Shared[ma.Count] = ma.counter()


class ScaleByStddev(AbstractRMS, ma.AbstractLeafwise[ScaleByStddevState]):
    r"""Divides the updates by their standard deviation: the direction of centered RMSProp.

    $$
    \begin{aligned}
    m_t &= \beta m_{t-1} + (1 - \beta) g_t \\
    v_t &= \beta v_{t-1} + (1 - \beta) |g_t|^2 \\
    u_t &= g_t / \sqrt{v_t - |m_t|^2 + \varepsilon}
        \quad\text{or}\quad g_t / (\sqrt{v_t - |m_t|^2} + \varepsilon)
    \end{aligned}
    $$

    Args:
        decay: exponential decay rate $\beta$ of the second moment, and of the first where there is one.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, and not outside.
        bias_correction: whether to divide the moments by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    def init_leaf(self, p):
        # The square of the mean is subtracted from the second moment: a mean in bfloat16 would leave its rounding.
        dtype = ma.at_least_float32(p.dtype)
        return ScaleByStddevState(
            mu=jnp.zeros_like(p, dtype), nu=ma.second_moment_like(p, ma.at_start(self.initial_scale))
        )

    def prepare(self, count):
        return ma.bias(self.decay, count + 1)

    def update_leaf(self, now, g, s, p):
        del p
        mu = ma.moment(self.decay, s.mu, g)
        nu = ma.moment(self.decay, s.nu, ma.abs_sq(g))
        mu_hat, nu_hat = (mu / now, nu / now) if self.bias_correction else (mu, nu)
        # Rounding can make this difference negative, and two infinities have none.
        variance = jnp.maximum(nu_hat - without_infinities(ma.abs_sq(mu_hat)), 0)
        u = g / root_with_eps(variance, self.eps, self.eps_in_sqrt)
        return u, ScaleByStddevState(mu=mu, nu=nu)


def root_with_eps(x: ma.Array, eps, inside: bool) -> ma.Array:
    """The square root of `x`, with `eps` added inside or outside."""
    return ma.safe_sqrt(eps + x) if inside else eps + ma.safe_sqrt(x)


class RMSProp(AbstractRMSProp, ma.AbstractRated):
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
        decay: exponential decay rate $\beta$ of the second moment, and of the first where there is one.
        eps: $\varepsilon$, added to the denominator.
        initial_scale: initial value of the second moment.
        eps_in_sqrt: whether $\varepsilon$ is added inside the root, and not outside.
        centered: whether to divide by the standard deviation instead of the root mean square.
        momentum: momentum coefficient $\mu$; None for no momentum, and no state for it.
        nesterov: whether to use Nesterov momentum.
        bias_correction: whether to divide $v_t$, and $m_t$, by $1 - \beta^t$, to correct the bias of a start at zero.

    References:
        Tieleman and Hinton,
        [Lecture 6.5](https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf), 2012;
        Graves, [Generating Sequences With Recurrent Neural Networks](https://arxiv.org/abs/1308.0850), 2013.
    """

    centered: bool = ma.static(False)
    momentum: ma.OptionalNumber = ma.number(None, optional=True)
    nesterov: bool = ma.static(False)
    bias_correction: bool = ma.static(False)

    def transform(self) -> ma.Chain:
        rms = self._part(ScaleByStddev if self.centered else ScaleByRMS)
        rate = ma.ScaleByLearningRate(self.learning_rate)
        return (
            ma.Chain(rms, rate) if self.momentum is None else ma.Chain(rms, rate, Trace(self.momentum, self.nesterov))
        )
