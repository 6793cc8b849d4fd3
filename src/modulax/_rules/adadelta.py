"""Adadelta: gradients rescaled to the size of past updates."""

from .. import authoring as ma
from .._support.arithmetic import depend_on


class ScaleByAdadeltaState(ma.AbstractState):
    """State of `ScaleByAdadelta`: mean squares `e_g` of the incoming and `e_x` of the outgoing updates."""

    optax_fields = ("e_g", "e_x")

    e_g: ma.PyTree = ma.like_params(nonnegative=True)
    e_x: ma.PyTree = ma.like_params(nonnegative=True)


class AbstractAdadelta(ma.AbstractFields):
    r"""The hyperparameters of Adadelta.

    Args:
        rho: exponential decay rate $\rho$ of both mean squares.
        eps: $\varepsilon$, added inside both roots; it also sets the size of the first steps.
    """

    rho: ma.Number = ma.number(0.9, needs=ma.DECAY)
    eps: ma.Number = ma.number(1e-6)


class ScaleByAdadelta(AbstractAdadelta, ma.AbstractLeafwise[ScaleByAdadeltaState]):
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

    def init_leaf(self, p):
        return ScaleByAdadeltaState(e_g=ma.second_moment_like(p), e_x=ma.second_moment_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        e_g = ma.moment(self.rho, s.e_g, ma.abs_sq(g))
        # `e_x` is zero at first and `eps` may be zero, where the derivative of `jnp.sqrt` is infinite.
        u = ma.safe_sqrt(self.eps + s.e_x) / ma.safe_sqrt(self.eps + e_g) * g
        e_x = ma.moment(self.rho, s.e_x, ma.abs_sq(u))
        return depend_on(u, e_x), ScaleByAdadeltaState(e_g=e_g, e_x=e_x)


class Adadelta(AbstractAdadelta, ma.AbstractRated):
    r"""Adaptive gradient descent that derives its step size from past updates, so that the learning rate can stay at 1.

        optimizer = Adadelta()

    $$
    \begin{aligned}
    g_t &= \nabla f(w_t) + \lambda w_t \\
    E_t &= \rho E_{t-1} + (1 - \rho) |g_t|^2 \\
    u_t &= \frac{\sqrt{X_{t-1} + \varepsilon}}{\sqrt{E_t + \varepsilon}}\, g_t \\
    X_t &= \rho X_{t-1} + (1 - \rho) |u_t|^2 \\
    w_{t+1} &= w_t - \eta u_t
    \end{aligned}
    $$

    with $E_0 = X_0 = 0$. The paper has no learning rate, which is $\eta = 1$. The weight decay is an $L_2$ penalty, as
    in torch: it is added to the gradient before the scaling.

    Args:
        learning_rate: learning rate $\eta$, a number or a schedule.
        rho: exponential decay rate $\rho$ of both mean squares.
        eps: $\varepsilon$, added inside both roots; it also sets the size of the first steps.
        weight_decay: coefficient $\lambda$ of the $L_2$ penalty, whose gradient $\lambda w_t$ is added to the gradient.
        mask: which parameters decay, as in `AddDecayedWeights`; by default all.

    References:
        Zeiler, [ADADELTA: An Adaptive Learning Rate Method](https://arxiv.org/abs/1212.5701), 2012.
    """

    direction = ScaleByAdadelta
    learning_rate: ma.Number = ma.number(1.0)
    weight_decay: ma.Number = ma.number(0.0)
    mask: ma.Mask = ma.mask()

    def directions(self):
        return [self._part(ma.AddDecayedWeights), *super().directions()]
