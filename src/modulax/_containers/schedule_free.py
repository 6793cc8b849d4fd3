"""`ScheduleFree`: weight averaging instead of a learning-rate schedule."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, Float, PyTree

from .._protocol.container import in_dtypes_of, required_part
from .._protocol.fields import Number, followed, number, required_number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock, Effect
from .._support.arithmetic import at_least_float32, copy_in, moment, ratio, safe_increment
from .._support.checks import FRACTION
from .._support.module import AbstractState, first_values, like_params, nested, shared, with_fields
from .._support.types import Count, Follow, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic
from ..tree._math import widened
from .order import AbstractSteering


class ScheduleFreeState(AbstractState):
    """State of `ScheduleFree`: base iterates `z`, their weighted average `x`, and the state of the base optimizer.

    `weight_sum` is the sum of the weights so far, `max_lr` the largest learning rate so far, and `step_count` the step
    count for schedules.
    """

    optax_fields = ("b1", "weight_sum", "step_count", "max_lr", "base_optimizer_state", "z")

    weight_sum: Float[Array, ""] = shared(kw_only=True, starts=0.0)  # the second field in optax
    step_count: Count = shared(kw_only=True, origin=lambda rule: _first_step(rule))
    max_lr: Float[Array, ""] = shared(kw_only=True, starts=0.0)
    base_optimizer_state: State = nested()
    z: PyTree = like_params(copied=True)
    x: PyTree = like_params(copied=True)


def _first_step(rule: Any) -> int:
    """The step count at the first step: optax counts from 1."""
    return int(rule.follow == "optax")


class ScheduleFree(AbstractSteering):
    r"""Schedule-Free learning: replaces the decay of the learning rate by weight averaging, for any base optimizer.

    $$
    \begin{aligned}
    y_t &= (1 - \beta_1) z_t + \beta_1 x_t \\
    z_{t+1} &= z_t + u_t, \qquad u_t \text{ the step of the optimizer for } \nabla f(y_t) \\
    c_{t+1} &= w_t / \textstyle\sum_{i \le t} w_i, \qquad w_t = (\max_{i \le t} \gamma_i)^p \\
    x_{t+1} &= (1 - c_{t+1}) x_t + c_{t+1} z_{t+1}
    \end{aligned}
    $$

    The parameters that are trained are $y$. The evaluation parameters, which are also those to deploy, are the average
    $x$; `eval_params(state, params)` returns them. The interpolation replaces momentum, so the base optimizer should
    have none.

        ScheduleFree(SGD(1.0), 1.0)

    Both $z$ and $x$ are stored in the state. That is one copy of the parameters more than in optax, which computes $x$
    from $y$ and $z$. In return, $\beta_1$ may be 0 or a schedule, `eval_params` is idempotent, and parameters in
    bfloat16 lose no precision: the steps of the average become smaller and smaller, and would be rounded away.

    `ScheduleFree` determines the parameters themselves, so put it last in a chain. In a model with batch normalization,
    recompute the statistics at $x$ before evaluating.

    Args:
        base_optimizer: base optimizer, which makes the steps $u_t$, with its own learning rate.
        learning_rate: the same learning rate $\gamma$ again, for the weights of the average; a number, or a schedule
            with warm-up and without decay.
        b1: interpolation weight $\beta_1$, in [0, 1]: 0 is plain (Polyak-Ruppert) averaging, 1 trains the average $x$.
        weight_lr_power: power $p$ of the learning rate in the weights; 0 gives equal weights.
        state_dtype: dtype of $z$ and $x$; by default that of the parameters, at least float32.
        follow: when the schedule of $\gamma$ begins: at the first step, together with the schedules of the base
            optimizer, `"paper"`; or one step ahead of them, `"optax"`.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024.
    """

    base_optimizer: AbstractTransform = required_part(state="base_optimizer_state")
    learning_rate: Number = required_number()
    b1: Number = number(0.9, needs=FRACTION)
    weight_lr_power: Number = number(2.0)
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: dataclasses.KW_ONLY
    follow: Follow = followed()

    _keeps = "direction"
    needs: ClassVar[tuple[str, ...]] = ("params",)
    clock: ClassVar[Clock] = "pace"
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    def _effect(self, tree: Params) -> Effect:
        return super()._effect(tree)._replace(is_fine=True)

    def init(self, params: Params) -> ScheduleFreeState:
        """Return copies of the parameters as $z$ and $x$, and the state of the base optimizer."""

        def copied(tree: Params) -> PyTree:
            return jtu.tree_map(lambda p: copy_in(p, self.state_dtype or at_least_float32(p.dtype)), tree)

        step_count = jnp.full((), _first_step(self), jnp.int32)
        return ScheduleFreeState(
            **first_values(ScheduleFreeState, self),
            step_count=step_count,
            base_optimizer_state=self._inside(step_count).init(params),
            z=copied(params),
            x=copied(params),
        )

    def update(
        self, updates: Updates, state: ScheduleFreeState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScheduleFreeState]:
        """Run one step of the base optimizer on z, and return the difference between the next y and the parameters."""
        learning_rate, b1, power = self._numbers(state)
        max_lr = jnp.maximum(state.max_lr, jnp.abs(learning_rate).astype(state.max_lr.dtype))
        weight = max_lr ** jnp.asarray(power).astype(max_lr.dtype)
        weight_sum = state.weight_sum + weight

        optimizer = self._inside(state.step_count)
        # `z` is at least float32, so that steps must not be rounded to the dtype of the gradients before.
        steps, base_state = optimizer.update(widened(updates), state.base_optimizer_state, params, **extra)

        # `x` is stored, and not computed from `y` and `z` as in optax: so `b1` may be 0 or follow a schedule, and
        # bfloat16 parameters do not round the average.
        def move(now: Any, z: Array, x: Array, u: Array, p: Array) -> tuple[Array, ...]:
            b1, c = now
            z = z + u
            x = moment(1 - c, x, z, c)
            y = moment(b1, x, z)
            return z, x, y - p

        g, treedef = jtu.tree_flatten(updates)
        zs, put_z = align(state.z, updates, "ScheduleFree.update")
        xs, put_x = align(state.x, updates, "ScheduleFree.update")
        columns = zs, xs, jtu.tree_leaves(steps), jtu.tree_leaves(params)
        zs, xs, out = map_arithmetic(move, (b1, ratio(weight, weight_sum)), columns, (zs, xs, g))
        return treedef.unflatten(out), ScheduleFreeState(
            weight_sum=weight_sum,
            step_count=safe_increment(state.step_count),
            max_lr=max_lr,
            base_optimizer_state=base_state,
            z=put_z(zs),
            x=put_x(xs),
        )

    def resolved(self, state: ScheduleFreeState) -> "ScheduleFree":
        """Return this container with its schedules, and those of the base optimizer, at their current values.

        Args:
            state: the state of this container.
        """
        learning_rate, b1, power = self._numbers(state)
        inside = self._inside(state.step_count)
        return with_fields(self, base_optimizer=inside, learning_rate=learning_rate, b1=b1, weight_lr_power=power)

    # Overridden because the average x replaces the evaluation parameters of the base optimizer, which steps from z.
    def eval_params(self, state: ScheduleFreeState, params: Params) -> Params:
        """Return the average x, in the dtypes of the parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return in_dtypes_of(params, state.x, "ScheduleFree.eval_params")

    def _inside(self, step_count: Any) -> AbstractTransform:
        """The base optimizer with its schedules at their current values; they begin at the first step."""
        return resolve([self.base_optimizer], step_count - _first_step(self))[0]

    def _numbers(self, state: ScheduleFreeState) -> tuple[Any, Any, Any]:
        return resolve((self.learning_rate, self.b1, self.weight_lr_power), state.step_count)
