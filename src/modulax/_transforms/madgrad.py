"""MADGRAD: dual averaging with momentum and a cube root in the denominator."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, number, required_number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter, like_params
from .._support.types import Count, Shared


class ScaleByMADGRADState(AbstractState):
    """State of `ScaleByMADGRAD`: step count, weighted sums of squares and of updates, and initial parameters."""

    optax_fields: ClassVar[tuple[str, ...]] = ("count", "grad_sum_sq", "s", "x0")

    grad_sum_sq: PyTree = like_params(exact=True)
    s: PyTree = like_params(exact=True)
    x0: PyTree = like_params(copied=True)
    count: Shared[Count] = counter()


class ScaleByMADGRAD(AbstractLeafwise[ScaleByMADGRADState]):
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

    _why_last: ClassVar[str] = "computes the new parameters from the first ones"
    _negates: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("params",)

    learning_rate: Number = required_number()
    momentum: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-6)

    def init_leaf(self, p):
        s = jnp.zeros_like(p, at_least_float32(p.dtype))
        # A copy of `p`, because `step(donate=True)` gives away the parameters with their buffers.
        return ScaleByMADGRADState(grad_sum_sq=second_moment_like(p), s=s, x0=jnp.array(p, copy=True))

    def prepare(self, count):
        return (self.eps + self.learning_rate) * jnp.sqrt(count + 1)

    def update_leaf(self, now, g, s, p):
        total = now * g + s.s
        squares = now * abs_sq(g) + s.grad_sum_sq
        z = s.x0 - total / (self.eps + _cube_root(squares))
        return (1 - self.momentum) * (z - p), ScaleByMADGRADState(grad_sum_sq=squares, s=total, x0=s.x0)


def _cube_root(x: Array) -> Array:
    """The cube root of a nonnegative number, with a derivative of zero at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.cbrt(jnp.where(positive, x, 1)), 0)
