"""MADGRAD: dual averaging with a cube root."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, at_least_float32, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, counter
from .._support.types import Count


class ScaleByMADGRADState(AbstractState):
    """The state of `ScaleByMADGRAD`: the steps done, the sums of squares and of updates, and the first point."""

    grad_sum_sq: PyTree
    s: PyTree
    x0: PyTree
    count: Count | None = counter()


class ScaleByMADGRAD(AbstractLeafwise):
    r"""MADGRAD's step: towards the first point minus the weighted sum of all gradients, scaled in each coordinate.

    $$
    \begin{aligned}
    \lambda_k &= (\eta + \varepsilon) \sqrt{k + 1} \\
    s_{k+1} &= s_k + \lambda_k g_k, \qquad v_{k+1} = v_k + \lambda_k |g_k|^2 \\
    z_{k+1} &= w_0 - s_{k+1} / (\sqrt[3]{v_{k+1}} + \varepsilon) \\
    u_k &= (1 - \mu) (z_{k+1} - w_k)
    \end{aligned}
    $$

    The update is the whole step, learning rate and sign included; that $\varepsilon$ is added to the rate is from the
    authors' code. The sums and the first point are not decayed, so a change of the rate acts on new gradients alone.

    Args:
        learning_rate: $\eta$.
        momentum: $\mu$; the paper's $c$ is $1 - \mu$.
        eps: $\varepsilon$.

    References:
        Defazio and Jelassi, [Adaptivity without Compromise: A Momentumized, Adaptive, Dual Averaged Gradient Method
        for Stochastic Optimization](https://arxiv.org/abs/2101.11075), 2021, and its
        [code](https://github.com/facebookresearch/madgrad).
    """

    needs: ClassVar[tuple[str, ...]] = ("params",)
    cites: ClassVar[tuple[str, ...]] = ("defazio2021",)

    learning_rate: Number = number()
    momentum: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-6)

    def init_leaf(self, p):
        s = jnp.zeros_like(p, at_least_float32(p.dtype))
        return ScaleByMADGRADState(grad_sum_sq=second_moment_like(p), s=s, x0=jnp.array(p, copy=True))

    def prepare(self, count):
        return (self.eps + self.learning_rate) * jnp.sqrt(count + 1)

    def update_leaf(self, now, g, s, p):
        total = now * g + s.s
        squares = now * abs_sq(g) + s.grad_sum_sq
        z = s.x0 - total / (self.eps + _cube_root(squares))
        return (1 - self.momentum) * (z - p), ScaleByMADGRADState(grad_sum_sq=squares, s=total, x0=s.x0)


def _cube_root(x: Array) -> Array:
    """The cube root of what is not negative, with a derivative of zero at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.cbrt(jnp.where(positive, x, 1)), 0)
