"""Rprop: one step size per entry, adapted by the sign of the gradient."""

import jax.numpy as jnp

from .. import authoring as ma


class ScaleByRpropState(ma.AbstractState):
    """State of `ScaleByRprop`: the step size of every entry, and the previous step."""

    optax_fields = ("step_sizes", "prev_updates")

    step_sizes: ma.PyTree = ma.like_params(nonnegative=True)
    prev_updates: ma.PyTree = ma.like_params()


class AbstractRprop(ma.AbstractFields):
    r"""The hyperparameters of Rprop.

    Args:
        learning_rate: initial step size $\Delta_0$; only the first value of a schedule is used.
        eta_minus: factor $\eta_-$ of the step size when the sign changes.
        eta_plus: factor $\eta_+$ of the step size when the sign stays the same.
        min_step_size: smallest step size $\Delta_\text{min}$.
        max_step_size: largest step size $\Delta_\text{max}$.
        follow: `"paper"` takes the step $u_t$; `"optax"` takes the previous one, $u_{t-1}$, which is zero at first, or
            none where the sign changes.
    """

    learning_rate: ma.Number = ma.required_number()
    eta_minus: ma.Number = ma.number(0.5)
    eta_plus: ma.Number = ma.number(1.2)
    min_step_size: ma.Number = ma.number(1e-6)
    max_step_size: ma.Number = ma.number(50.0)
    _: ma.KW_ONLY
    follow: ma.Follow = ma.followed()


class ScaleByRprop(AbstractRprop, ma.AbstractLeafwise[ScaleByRpropState]):
    r"""One step size per entry, which grows while the sign of the update stays the same: the direction of Rprop.

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

    This is iRprop⁻ of Igel and Hüsken: unlike the original algorithm, it doesn't revert the previous step when the sign
    changes. Rprop is for full-batch gradients, because noise changes signs.

    Args:
        learning_rate: initial step size $\Delta_0$; only the first value of a schedule is used.
        eta_minus: factor $\eta_-$ of the step size when the sign changes.
        eta_plus: factor $\eta_+$ of the step size when the sign stays the same.
        min_step_size: smallest step size $\Delta_\text{min}$.
        max_step_size: largest step size $\Delta_\text{max}$.
        follow: `"paper"` takes the step $u_t$; `"optax"` takes the previous one, $u_{t-1}$, which is zero at first, or
            none where the sign changes.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    needs = ("real",)

    def init_leaf(self, p):
        # A step size in bfloat16 would be rounded in each of many multiplications.
        dtype = ma.at_least_float32(p.dtype)
        step_sizes = jnp.full_like(p, ma.at_start(self.learning_rate), dtype)
        return ScaleByRpropState(step_sizes=step_sizes, prev_updates=jnp.zeros_like(p, dtype))

    def update_leaf(self, now, g, s, p):
        del now, p
        agreement = jnp.sign(g) * jnp.sign(s.prev_updates)  # the product of the values could underflow
        factor = jnp.where(agreement > 0, self.eta_plus, self.eta_minus)
        scaled = jnp.clip(factor * s.step_sizes, self.min_step_size, self.max_step_size)
        step_sizes = jnp.where(agreement == 0, s.step_sizes, scaled)
        step = jnp.where(agreement < 0, 0, step_sizes * jnp.sign(g))
        before = jnp.where(agreement < 0, 0, s.prev_updates)
        return step if self.follow == "paper" else before, ScaleByRpropState(step_sizes=step_sizes, prev_updates=step)


class Rprop(AbstractRprop, ma.AbstractOptimizer):
    r"""Resilient backpropagation: one step size per coordinate, adapted by the sign of the gradient; for full batches.

        optimizer = Rprop(0.01)

    $$
    \begin{aligned}
    \Delta_t &= \begin{cases}
        \min(\eta_+ \Delta_{t-1}, \Delta_\text{max}) & \text{if } g_t u_{t-1} > 0 \\
        \max(\eta_- \Delta_{t-1}, \Delta_\text{min}) & \text{if } g_t u_{t-1} < 0 \\
        \Delta_{t-1} & \text{otherwise}
    \end{cases} \\
    u_t &= \begin{cases} 0 & \text{if } g_t u_{t-1} < 0 \\
        \Delta_t \operatorname{sign}(g_t) & \text{otherwise} \end{cases} \\
    w_{t+1} &= w_t - u_t
    \end{aligned}
    $$

    in each coordinate, with $g_t$ the gradient at $w_t$ and $u_0 = 0$. This is iRprop⁻ of Igel and Hüsken. Gradients
    should be those of all data, because noise changes signs.

    Args:
        learning_rate: initial step size $\Delta_0$; only the first value of a schedule is used.
        eta_minus: factor $\eta_-$ of the step size when the sign changes.
        eta_plus: factor $\eta_+$ of the step size when the sign stays the same.
        min_step_size: smallest step size $\Delta_\text{min}$.
        max_step_size: largest step size $\Delta_\text{max}$.
        follow: `"paper"` takes the step $u_t$; `"optax"` takes the previous one, $u_{t-1}$, which is zero at first, or
            none where the sign changes.

    References:
        Riedmiller and Braun, [A direct adaptive method for faster backpropagation learning: the RPROP
        algorithm](https://doi.org/10.1109/ICNN.1993.298623), 1993;
        Igel and Hüsken, [Empirical evaluation of the improved Rprop learning
        algorithms](https://doi.org/10.1016/S0925-2312(01)00700-7), 2003.
    """

    def transform(self) -> ma.Chain:
        return ma.Chain(self._part(ScaleByRprop), ma.Scale(-1.0))
