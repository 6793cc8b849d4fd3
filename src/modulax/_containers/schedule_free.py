"""Averages instead of a schedule: the parameters to evaluate are the mean of those that are trained."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, Float, PyTree

from .._protocol.container import AbstractContainer, in_dtypes_of, part
from .._protocol.fields import Hyperparameter, followed, number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import at_least_float32, copy_in, default_float, moment, ratio, safe_increment
from .._support.checks import FRACTION
from .._support.module import AbstractState, like_params, nested, shared, with_fields
from .._support.types import Count, Follow, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic
from ..tree._math import trainable, widened


class ScheduleFreeState(AbstractState):
    """The state of `ScheduleFree`: the points `z` that the steps are added to, and their weighted mean `x`.

    `weight_sum` is the sum of the weights so far, and `max_lr` the largest learning rate.
    """

    weight_sum: Float[Array, ""] = shared()
    step_count: Count = shared()
    max_lr: Float[Array, ""] = shared()
    base_optimizer_state: State = nested()
    z: PyTree = like_params()
    x: PyTree = like_params()


class ScheduleFree(AbstractContainer):
    r"""Turns an optimizer into one that needs no decay of the learning rate: it averages the points instead.

    $$
    \begin{aligned}
    y_t &= (1 - \beta_1) z_t + \beta_1 x_t \\
    z_{t+1} &= z_t + u_t, \qquad u_t \text{ the step of the optimizer for } \nabla f(y_t) \\
    c_{t+1} &= w_t / \textstyle\sum_{i \le t} w_i, \qquad w_t = (\max_{i \le t} \gamma_i)^p \\
    x_{t+1} &= (1 - c_{t+1}) x_t + c_{t+1} z_{t+1}
    \end{aligned}
    $$

    The parameters that are trained are $y$. Those to evaluate and to ship are the mean $x$, which is what
    `eval_params(state, params)` returns. The interpolation takes the place of momentum: the optimizer inside has none.

        ScheduleFree(SGD(1.0), 1.0)

    Both $z$ and $x$ are in the state, which costs one copy of the parameters more than optax, which computes $x$ from
    $y$ and $z$. In return $\beta_1$ may be 0 or follow a schedule, evaluating twice is evaluating once, and parameters
    in bfloat16 lose nothing: the mean moves by ever smaller steps, which they could not hold.

    It says where the parameters go, so it stands last in a chain. A model with batch normalization needs its statistics
    taken anew at $x$.

    Args:
        base_optimizer: the optimizer that makes the steps $u_t$, with its own learning rate.
        learning_rate: $\gamma$, the same once more, for the weights; a schedule with a warm-up and without a decay.
        b1: the interpolation $\beta_1$, in [0, 1]: 0 is plain averaging, 1 trains the mean itself.
        weight_lr_power: the power $p$; 0 weighs all points alike.
        state_dtype: the dtype of $z$ and $x$; by default the parameter's, at least float32.
        follow: when the schedule of $\gamma$ begins: with the first step, as that of the optimizer inside does,
            `"paper"`; or one step ahead of it, `"optax"`.

    References:
        Defazio et al., [The Road Less Scheduled](https://arxiv.org/abs/2405.15682), 2024.
    """

    base_optimizer: AbstractTransform = part(state="base_optimizer_state")
    learning_rate: Hyperparameter = number()
    b1: Hyperparameter = number(0.9, needs=FRACTION)
    weight_lr_power: Hyperparameter = number(2.0)
    state_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    _: dataclasses.KW_ONLY
    follow: Follow = followed()

    needs: ClassVar[tuple[str, ...]] = ("params",)
    clock: ClassVar[Clock] = "pace"
    cites: ClassVar[tuple[str, ...]] = ("defazio2024",)

    def init(self, params: Params) -> ScheduleFreeState:
        """All points at the parameters, and the state of the optimizer inside."""

        def copied(tree: Params) -> PyTree:
            return jtu.tree_map(lambda p: copy_in(p, self.state_dtype or at_least_float32(p.dtype)), tree)

        step_count = jnp.full((), self.follow == "optax", jnp.int32)
        return ScheduleFreeState(
            weight_sum=jnp.zeros((), default_float()),
            step_count=step_count,
            max_lr=jnp.zeros((), default_float()),
            base_optimizer_state=self._inside(step_count).init(params),
            z=copied(params),
            x=copied(params),
        )

    def update(
        self, updates: Updates, state: ScheduleFreeState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, ScheduleFreeState]:
        """One step of the optimizer inside on z, and the way from the parameters to the next y."""
        learning_rate, b1, power = self._numbers(state)
        max_lr = jnp.maximum(state.max_lr, jnp.abs(learning_rate).astype(state.max_lr.dtype))
        weight = max_lr ** jnp.asarray(power).astype(max_lr.dtype)
        weight_sum = state.weight_sum + weight

        optimizer = self._inside(state.step_count)
        steps, base_state = optimizer.update(widened(updates), state.base_optimizer_state, params, **extra)

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
        """Return this container with its hyperparameters, and those of its part, at their current values."""
        learning_rate, b1, power = self._numbers(state)
        inside = self._inside(state.step_count)
        return with_fields(self, base_optimizer=inside, learning_rate=learning_rate, b1=b1, weight_lr_power=power)

    # Not those of the part, which takes its steps from z: the mean x is kept here.
    def eval_params(self, state: ScheduleFreeState, params: Params) -> Params:
        """The mean x, in the dtypes of the parameters."""
        return in_dtypes_of(params, state.x, "ScheduleFree.eval_params")

    def _inside(self, step_count: Any) -> AbstractTransform:
        """The optimizer inside with the numbers in force, whose schedules begin with the first step."""
        return resolve([self.base_optimizer], step_count - int(self.follow == "optax"))[0]

    def _numbers(self, state: ScheduleFreeState) -> tuple[Any, Any, Any]:
        return resolve((self.learning_rate, self.b1, self.weight_lr_power), state.step_count)


def schedule_free_eval_params(state: State, params: Params) -> Params:
    """The parameters to evaluate of the `ScheduleFree` that a state belongs to: its mean of the points.

    `optimizer.eval_params(state, params)` does the same for any optimizer; this function needs no optimizer at hand.

    Args:
        state: the state of `ScheduleFree`, or of anything that holds exactly one.
        params: the parameters, or the whole model.
    """
    leaves = jtu.tree_leaves(state, is_leaf=lambda x: isinstance(x, ScheduleFreeState))
    found = [x for x in leaves if isinstance(x, ScheduleFreeState)]
    if len(found) != 1:
        raise ValueError(
            f"`schedule_free_eval_params` needs the state of a `ScheduleFree`, and found {len(found)} in "
            f"`{type(state).__name__}`. Call `optimizer.eval_params(state, params)`, which works for all."
        )
    mean = in_dtypes_of(trainable(params), found[0].x, "schedule_free_eval_params")
    return eqx.combine(mean, params)
