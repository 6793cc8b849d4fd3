"""`Lookahead`: slow weights that follow the fast weights of another optimizer."""

import functools
from typing import Any, ClassVar, Self, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, DTypeLike, PyTree

from .._protocol.container import in_dtypes_of, required_part
from .._protocol.fields import Number, required_number
from .._protocol.schedule_values import reading
from .._protocol.step import apply_updates
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import copy_in, default_float, safe_increment
from .._support.checks import FRACTION, WHOLE
from .._support.module import AbstractModule, AbstractState, like_params, nested, shared, with_fields
from .._support.placement import typed_like
from .._support.types import Count, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic
from ..tree._math import choose, trainable, widened
from .order import AbstractSteering

C = TypeVar("C", bound=type[Any])
_BOTH = "Give both the same: with plain parameters, the slow ones are kept in the state."


class LookaheadParams(AbstractModule):
    """A pair of the fast and the slow parameters of `Lookahead`, for training loops that keep both themselves.

        params = LookaheadParams.init_synced(params)
        state = optimizer.init(params)
        params, state = optimizer.step(jax.grad(loss)(params.fast), state, params)

    Gradients are taken at the fast parameters; the slow ones are the evaluation parameters. Only `Lookahead` itself
    accepts such a pair. With plain parameters, it keeps the slow ones in its state and works inside any container.

    Args:
        fast: the parameters that are trained.
        slow: the evaluation parameters.
    """

    _params_hint: ClassVar[str] = (
        "Only `Lookahead` itself accepts a pair. Put `Lookahead` outermost, as in `Lookahead(Chain(...), 5, 0.5)`, "
        "or give plain parameters: `Lookahead` then keeps the slow ones in its state, and `eval_params(state, params)` "
        "returns them."
    )

    fast: PyTree
    slow: PyTree

    @classmethod
    def init_synced(cls, params: PyTree) -> Self:
        """Return a pair of equal parameters that share no array, so that both can be donated.

        Args:
            params: the parameters, or the whole model.
        """
        # JAX refuses to donate one buffer twice.
        slow = jtu.tree_map(lambda x: jnp.array(x, copy=True) if eqx.is_array(x) else x, params)
        return cls(fast=params, slow=slow)


class LookaheadState(AbstractState):
    """State of `Lookahead`: fast optimizer state, steps since the last synchronization, and the slow parameters.

    `slow` is None if the caller keeps the slow parameters, in `LookaheadParams`.
    """

    optax_fields = ("fast_state", "steps_since_sync")

    fast_state: State = nested()
    steps_since_sync: Count = shared()
    slow: PyTree = like_params(copied=True)


def is_pair(params: Any) -> bool:
    """Whether these are `LookaheadParams`."""
    return isinstance(params, LookaheadParams)


def _accepting_pairs(cls: C) -> C:
    """Let the methods of `Lookahead` take a pair: the slow parameters are moved into the state, and out of it after."""
    init, update, step, eval_params = cls.init, cls.update, cls.step, cls.eval_params

    def inward(name: str, updates: Updates, state: Any, params: LookaheadParams) -> LookaheadState:
        if is_pair(updates):
            raise ValueError(
                f"`Lookahead.{name}` was given updates for a pair of parameters. Give the gradients with respect to "
                f"the fast ones, `jax.grad(loss)(params.fast)`."
            )
        if state.slow is not None:
            raise ValueError(f"`Lookahead.{name}` was given a pair, and `init` plain parameters. {_BOTH}")
        return with_fields(state, slow=trainable(params.slow))

    @functools.wraps(init)
    def init_pair(self, /, params, **options):
        state = init(self, params.fast if is_pair(params) else params, **options)
        return with_fields(state, slow=None) if is_pair(params) else state

    @functools.wraps(update)
    def update_pair(self, /, updates, state, params: Any = None, **extra):
        if not is_pair(params):
            return update(self, updates, state, params, **extra)
        before = inward("update", updates, state, params)
        updates, after = update(self, updates, before, params.fast, **extra)
        # optax returns the updates of both sets of parameters.
        moved = jtu.tree_map(jnp.subtract, after.slow, before.slow)
        return LookaheadParams(updates, moved), with_fields(after, slow=None)

    @functools.wraps(step)
    def step_pair(self, /, grads, state, params, **options):
        if not is_pair(params):
            return step(self, grads, state, params, **options)
        fast, after = step(self, grads, inward("step", grads, state, params), params.fast, **options)
        return LookaheadParams(fast, eqx.combine(after.slow, params.slow)), with_fields(after, slow=None)

    @functools.wraps(eval_params)
    def eval_pair(self, /, state, params):
        return params.slow if is_pair(params) else eval_params(self, state, params)

    cls.init, cls.update, cls.step, cls.eval_params = init_pair, update_pair, step_pair, eval_pair
    return cls


@_accepting_pairs
class Lookahead(AbstractSteering):
    r"""Lookahead: after every $k$ fast steps, moves slow weights towards the fast ones, which restart from there.

        Lookahead(Adam(1e-3), sync_period=5, slow_step_size=0.5)

    $$
    \begin{aligned}
    \theta_{t,0} &= \phi_t, \qquad \theta_{t,i+1} = \theta_{t,i} + u_{t,i}, \quad i = 0, \dots, k - 1 \\
    \phi_{t+1} &= \phi_t + \alpha (\theta_{t,k} - \phi_t)
    \end{aligned}
    $$

    The fast parameters $\theta$ are trained; the slow ones $\phi$ are the evaluation parameters. With plain parameters,
    the slow ones are kept in the state, `eval_params(state, params)` returns them, and `Lookahead` works inside any
    container. With `LookaheadParams`, the gradients are those with respect to `params.fast`, and the updates are such a
    pair too, as in optax. In a chain, it must be the last transform.

    Args:
        fast_optimizer: optimizer of the fast parameters.
        sync_period: number $k$ of fast steps between synchronizations.
        slow_step_size: step size $\alpha$ of the slow parameters.
        reset_state: whether to reset the state of the fast optimizer, its step count and schedules included, at each
            synchronization.

    References:
        Zhang et al., [Lookahead Optimizer: k steps forward, 1 step back](https://arxiv.org/abs/1907.08610), 2019.
    """

    fast_optimizer: AbstractTransform = required_part(state="fast_state")
    sync_period: Number = required_number(needs=WHOLE)
    slow_step_size: Number = required_number(needs=FRACTION._replace(only_here=True))
    reset_state: bool = eqx.field(static=True, default=False)

    _keeps = "direction"
    needs: ClassVar[tuple[str, ...]] = ("params",)
    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True
    # The way to the slow parameters, in bfloat16, would be rounded, and not lead there.
    update_dtype: ClassVar[DTypeLike] = jnp.float32

    def init(self, params: Params) -> LookaheadState:
        """Return the state of the fast optimizer and, for plain parameters, a copy of them as the slow ones."""
        return LookaheadState(
            fast_state=self.fast_optimizer.init(params),
            steps_since_sync=jnp.zeros((), jnp.int32),
            slow=jtu.tree_map(copy_in, params),
        )

    def update(
        self, updates: Updates, state: LookaheadState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, LookaheadState]:
        """Run a fast step; after every `sync_period` of them, synchronize the fast and the slow parameters."""
        if updates is not None and state.slow is None:
            raise ValueError(f"`Lookahead.update` was given plain parameters, and `init` `LookaheadParams`. {_BOTH}")
        steps, fast_state = self.fast_optimizer.update(updates, state.fast_state, params, **extra)
        n = safe_increment(state.steps_since_sync)
        is_due = n.astype(default_float()) >= self.sync_period

        def meet(now: Any, u: Array, fast: Array, slow: Array) -> tuple[Array, ...]:
            is_due, slow_step_size = now
            new_slow = slow + jnp.where(is_due, slow_step_size * (fast + u - slow), 0)
            # The step to `new_slow`, because XLA for TPU fuses only what reads the other result.
            return jnp.where(is_due, typed_like(new_slow - fast, u), u), new_slow

        slow, put = align(state.slow, updates, "Lookahead.update")
        u, treedef = jtu.tree_flatten(widened(steps))
        columns = u, jtu.tree_leaves(params), slow
        out, new_slow = map_arithmetic(meet, (is_due, self.slow_step_size), columns, (u, slow))
        fast_steps = treedef.unflatten(out)
        if self.reset_state:
            # For the parameters after this step, because the state may hold copies of the parameters.
            fresh = self.fast_optimizer.init(apply_updates(params, fast_steps))
            fast_state = choose(is_due, fresh, fast_state)
        return fast_steps, LookaheadState(
            fast_state=fast_state,
            steps_since_sync=jnp.where(is_due, jnp.zeros_like(n), n),
            slow=put(new_slow),
        )

    # Overridden because a reset state does not tell which step was the last one, for `metrics`.
    def at(self, state: LookaheadState) -> Self:
        """Return this container with every schedule replaced by its value at the next step.

        Args:
            state: the state of this container.
        """
        with reading(steps_of_round=jnp.ceil(self.sync_period).astype(jnp.int32) if self.reset_state else 1):
            return super().at(state)

    # Overridden because the slow parameters replace the evaluation parameters of the fast optimizer.
    def eval_params(self, state: LookaheadState, params: Params) -> Params:
        """Return the slow parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return params if state.slow is None else in_dtypes_of(params, state.slow, "Lookahead.eval_params")
