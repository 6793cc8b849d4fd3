"""MADGRAD: dual averaging with momentum and a cube root in the denominator."""

import jax.numpy as jnp

from .. import authoring as ma


class ScaleByMADGRADState(ma.AbstractState):
    """State of `ScaleByMADGRAD`: step count, weighted sums of squares and of updates, and initial parameters."""

    optax_fields = ("count", "grad_sum_sq", "s", "x0")

    grad_sum_sq: ma.PyTree = ma.like_params(exact=True)
    s: ma.PyTree = ma.like_params(exact=True)
    x0: ma.PyTree = ma.like_params(copied=True)
    count: ma.Shared[ma.Count] = ma.counter()


class AbstractMADGRAD(ma.AbstractFields):
    r"""The hyperparameters of MADGRAD before the weight decay.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; the paper's $c$ is $1 - \mu$.
    """

    learning_rate: ma.Number = ma.required_number()
    momentum: ma.Number = ma.number(0.9, needs=ma.DECAY)


class ScaleByMADGRAD(AbstractMADGRAD, ma.AbstractLeafwise[ScaleByMADGRADState]):
    r"""Steps towards the initial parameters minus a scaled sum of all gradients (dual averaging): the step of MADGRAD.

    $$
    \begin{aligned}
    \lambda_k &= (\eta + \varepsilon) \sqrt{k + 1} \\
    s_{k+1} &= s_k + \lambda_k g_k, \qquad v_{k+1} = v_k + \lambda_k |g_k|^2 \\
    z_{k+1} &= w_0 - s_{k+1} / (\sqrt[3]{v_{k+1}} + \varepsilon) \\
    u_k &= (1 - \mu) (z_{k+1} - w_k)
    \end{aligned}
    $$

    The result is the full step, including learning rate and sign. As in the authors' code, $\varepsilon$ is added to
    the learning rate too. The sums don't decay, so a change of the learning rate affects only the weights of later
    gradients.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; the paper's $c$ is $1 - \mu$.
        eps: $\varepsilon$, added to the denominator and to the learning rate.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021, and its
        [code](https://github.com/facebookresearch/madgrad).
    """

    _why_last = "computes the new parameters from the first ones"
    _negates = True
    needs = ("params",)

    eps: ma.Number = ma.number(1e-6)

    def init_leaf(self, p):
        s = jnp.zeros_like(p, ma.at_least_float32(p.dtype))
        # A copy of `p`, because `step(donate=True)` gives away the parameters with their buffers.
        return ScaleByMADGRADState(grad_sum_sq=ma.second_moment_like(p), s=s, x0=jnp.array(p, copy=True))

    def prepare(self, count):
        return (self.eps + self.learning_rate) * jnp.sqrt(count + 1)

    def update_leaf(self, now, g, s, p):
        total = now * g + s.s
        squares = now * ma.abs_sq(g) + s.grad_sum_sq
        z = s.x0 - total / (self.eps + _cube_root(squares))
        return (1 - self.momentum) * (z - p), ScaleByMADGRADState(grad_sum_sq=squares, s=total, x0=s.x0)


def _cube_root(x: ma.Array) -> ma.Array:
    """The cube root of a nonnegative number, with a derivative of zero at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.cbrt(jnp.where(positive, x, 1)), 0)


class MADGRAD(AbstractMADGRAD, ma.AbstractOptimizer):
    r"""Adagrad with dual averaging and momentum, also for problems on which SGD generalizes better than Adam.

        optimizer = MADGRAD(1e-2, momentum=0.9)

    $$
    \begin{aligned}
    g_k &= \nabla f(w_k) + \lambda w_k \\
    \lambda_k &= (\eta + \varepsilon) \sqrt{k + 1} \\
    s_{k+1} &= s_k + \lambda_k g_k, \qquad v_{k+1} = v_k + \lambda_k |g_k|^2 \\
    z_{k+1} &= w_0 - s_{k+1} / (\sqrt[3]{v_{k+1}} + \varepsilon) \\
    w_{k+1} &= \mu w_k + (1 - \mu) z_{k+1}
    \end{aligned}
    $$

    with $k = 0, 1, \dots$, $s_0 = v_0 = 0$ and $w_0$ the initial parameters. $\lambda_k$ is the weight of a gradient,
    $\lambda$ that of the $L_2$ penalty.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        momentum: momentum coefficient $\mu$; the paper's $c$ is $1 - \mu$.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        eps: $\varepsilon$, added to the denominator and to the learning rate.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021.
    """

    weight_decay: ma.Number = ma.number(0.0)
    eps: ma.Number = ma.number(1e-6)

    def transform(self) -> ma.Chain:
        return ma.Chain(ma.AddDecayedWeights(self.weight_decay), self._part(ScaleByMADGRAD))
