"""Rprop: a step size per entry, which grows while the sign of the gradient stays."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from .._protocol.fields import Number, followed, number
from .._protocol.leafwise import AbstractLeafwise
from .._support.arithmetic import at_least_float32
from .._support.module import AbstractState
from .._support.types import Follow


class ScaleByRpropState(AbstractState):
    """The state of `ScaleByRprop`: the step size of every entry, and the step that was taken."""

    step_sizes: PyTree
    prev_updates: PyTree


class ScaleByRprop(AbstractLeafwise):
    r"""Rprop's direction: every entry has a step size of its own, which grows as long as the sign stays.

    $$
    \begin{aligned}
    \Delta_t &= \begin{cases}
        \min(\eta_+ \Delta_{t-1}, \Delta_\text{max}) & \text{if } g_t u_{t-1} > 0 \\
        \max(\eta_- \Delta_{t-1}, \Delta_\text{min}) & \text{if } g_t u_{t-1} < 0 \\
        \Delta_{t-1} & \text{otherwise}
    \end{cases} \\
    u_t &= \begin{cases} 0 & \text{if } g_t u_{t-1} < 0 \\
        \Delta_t \operatorname{sign}(g_t) & \text{otherwise} \end{cases}
    \end{aligned}
    $$

    This is Igel and Hüsken's iRprop⁻, which, unlike the first paper, does not take a step back where the sign changed.
    It is for gradients of the whole data set: noise changes signs.

    Args:
        learning_rate: the step size $\Delta_0$ at the start. Of a schedule only the first number is used.
        eta_minus: the factor $\eta_-$ where the sign changed.
        eta_plus: the factor $\eta_+$ where it did not.
        min_step_size: the smallest step.
        max_step_size: the largest step.
        follow: `"paper"` returns $u_t$; `"optax"` returns $u_{t-1}$, the step before (zero at first), except where
            the sign changed.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    takes_complex: ClassVar[bool] = False
    cites: ClassVar[tuple[str, ...]] = ("riedmiller1993", "igel2003")

    learning_rate: Number = number()
    eta_minus: Number = number(0.5)
    eta_plus: Number = number(1.2)
    min_step_size: Number = number(1e-6)
    max_step_size: Number = number(50.0)
    follow: Follow = followed()

    def init_leaf(self, p):
        dtype = at_least_float32(p.dtype)
        step_sizes = jnp.full_like(p, self.learning_rate, dtype)
        return ScaleByRpropState(step_sizes=step_sizes, prev_updates=jnp.zeros_like(p, dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        agreement = jnp.sign(g) * jnp.sign(s.prev_updates)  # a product of the numbers themselves would underflow
        factor = jnp.where(agreement > 0, self.eta_plus, self.eta_minus)
        scaled = jnp.clip(factor * s.step_sizes, self.min_step_size, self.max_step_size)
        step_sizes = jnp.where(agreement == 0, s.step_sizes, scaled)
        step = jnp.where(agreement < 0, 0, step_sizes * jnp.sign(g))
        before = jnp.where(agreement < 0, 0, s.prev_updates)
        return step if self.follow == "paper" else before, ScaleByRpropState(step_sizes=step_sizes, prev_updates=step)
