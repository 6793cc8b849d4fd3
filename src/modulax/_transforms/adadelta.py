"""Adadelta: gradients rescaled to the size of past updates."""

from typing import ClassVar

from jaxtyping import PyTree

from .._protocol.fields import Number, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import abs_sq, depend_on, moment, safe_sqrt, second_moment_like
from .._support.checks import DECAY
from .._support.module import AbstractState, like_params


class ScaleByAdadeltaState(AbstractState):
    """State of `ScaleByAdadelta`: mean squares `e_g` of the incoming and `e_x` of the outgoing updates."""

    optax_fields: ClassVar[tuple[str, ...]] = ("e_g", "e_x")

    e_g: PyTree = like_params(nonnegative=True)
    e_x: PyTree = like_params(nonnegative=True)


class ScaleByAdadelta(AbstractLeafwise[ScaleByAdadeltaState]):
    r"""Rescales updates by the root mean square of past outgoing over incoming ones: the direction of Adadelta.

    $$
    \begin{aligned}
    E_t &= \rho E_{t-1} + (1 - \rho) |g_t|^2 \\
    u_t &= \frac{\sqrt{X_{t-1} + \varepsilon}}{\sqrt{E_t + \varepsilon}}\, g_t \\
    X_t &= \rho X_{t-1} + (1 - \rho) |u_t|^2
    \end{aligned}
    $$

    The result has the units of the parameters and is used with a learning rate of about 1.

    Args:
        rho: exponential decay rate $\rho$ of both mean squares.
        eps: $\varepsilon$, added inside both roots; it also sets the size of the first steps.

    References:
        Zeiler, [ADADELTA: An Adaptive Learning Rate Method](https://arxiv.org/abs/1212.5701), 2012.
    """

    rho: Number = number(0.9, needs=DECAY)
    eps: Number = number(1e-6)

    def init_leaf(self, p):
        return ScaleByAdadeltaState(e_g=second_moment_like(p), e_x=second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        e_g = moment(self.rho, s.e_g, abs_sq(g))
        # `e_x` is zero at first and `eps` may be zero, where the derivative of `jnp.sqrt` is infinite.
        u = safe_sqrt(self.eps + s.e_x) / safe_sqrt(self.eps + e_g) * g
        e_x = moment(self.rho, s.e_x, abs_sq(u))
        return depend_on(u, e_x), ScaleByAdadeltaState(e_g=e_g, e_x=e_x)
