"""`Lookahead`: slow weights that follow the fast weights of another optimizer."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.apply_updates import apply_updates
from .._protocol.container import AbstractContainer, in_dtypes_of, required_part
from .._protocol.fields import Number, required_number
from .._protocol.lookahead_params import LookaheadParams, both, is_pair
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import copy_in, default_float, safe_increment
from .._support.checks import AT_LEAST_ONE
from .._support.module import AbstractState, like_params, nested, shared
from .._support.types import Count, Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_arithmetic


class LookaheadState(AbstractState):
    """State of `Lookahead`: fast optimizer state, steps since the last synchronization, and the slow parameters.

    `slow` is None if the caller keeps the slow parameters, in `LookaheadParams`.
    """

    optax_fields: ClassVar[tuple[str, ...]] = ("fast_state", "steps_since_sync")

    fast_state: State = nested()
    steps_since_sync: Count = shared()
    slow: PyTree = like_params(exact=True)


class Lookahead(AbstractContainer):
    r"""Lookahead: after every $k$ fast steps, moves slow weights towards the fast ones, which restart from there.

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
    sync_period: Number = required_number(needs=AT_LEAST_ONE)
    slow_step_size: Number = required_number()
    reset_state: bool = eqx.field(static=True, default=False)

    needs: ClassVar[tuple[str, ...]] = ("params",)
    is_arraywise: ClassVar[bool] = True

    def init(self, params: Params) -> LookaheadState:
        """Return the state of the fast optimizer and, for plain parameters, a copy of them as the slow ones."""
        paired = is_pair(params)
        return LookaheadState(
            fast_state=self.fast_optimizer.init(params.fast if paired else params),
            steps_since_sync=jnp.zeros((), jnp.int32),
            slow=None if paired else jtu.tree_map(copy_in, params),
        )

    def update(
        self, updates: Updates, state: LookaheadState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, LookaheadState]:
        """Run a fast step; after every `sync_period` of them, synchronize the fast and the slow parameters."""
        paired = is_pair(params)
        if updates is not None and paired == (state.slow is not None):
            given = ("a pair", "plain parameters") if paired else ("plain parameters", "`LookaheadParams`")
            raise ValueError(
                f"`Lookahead.update` was given {given[0]}, and `init` {given[1]}. Give both the same: with plain "
                f"parameters, the slow ones are kept in the state."
            )
        fast, slow = both(params) if paired else (params, state.slow)
        steps, fast_state = self.fast_optimizer.update(updates, state.fast_state, fast, **extra)
        n = safe_increment(state.steps_since_sync)
        is_due = n.astype(default_float()) >= self.sync_period

        def meet(now: Any, u: Array, fast: Array, slow: Array) -> tuple[Array, ...]:
            is_due, slow_step_size = now
            ahead = fast + u - slow
            slow_step = jnp.where(is_due, slow_step_size * ahead, 0)
            fast_step = jnp.where(is_due, u - (1 - slow_step_size) * ahead, u)
            return fast_step, slow_step if paired else slow + slow_step

        slow_leaves, put = align(slow, updates, "Lookahead.update")
        u, treedef = jtu.tree_flatten(steps)
        columns = u, jtu.tree_leaves(fast), slow_leaves
        out, new_slow = map_arithmetic(meet, (is_due, self.slow_step_size), columns, (u, u if paired else slow_leaves))
        fast_steps = treedef.unflatten(out)
        if self.reset_state:
            fresh = self.fast_optimizer.init(apply_updates(fast, fast_steps))
            fast_state = jtu.tree_map(lambda new, old: jnp.where(is_due, new, old), fresh, fast_state)
        new_state = LookaheadState(
            fast_state=fast_state,
            steps_since_sync=jnp.where(is_due, jnp.zeros_like(n), n),
            slow=None if paired else put(new_slow),
        )
        return LookaheadParams(fast_steps, treedef.unflatten(new_slow)) if paired else fast_steps, new_state

    # Overridden because the slow parameters replace the evaluation parameters of the fast optimizer.
    def eval_params(self, state: LookaheadState, params: Params) -> Params:
        """Return the slow parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return params if state.slow is None else in_dtypes_of(params, state.slow, "Lookahead.eval_params")

    def check_params(self, params: Params) -> None:
        """Accept any parameters, a `LookaheadParams` included."""

    def align_params(self, params: Params, updates: Updates, owner: str) -> Params:
        """Return the parameters, or both of a pair, in the structure of the updates."""
        if is_pair(updates):
            raise ValueError(
                f"`{owner}` was given updates for a pair of parameters. Give the gradients with respect to the fast "
                f"ones, `jax.grad(loss)(params.fast)`."
            )
        if not is_pair(params):
            return AbstractContainer.align_params(self, params, updates, owner)
        fast, slow = (AbstractContainer.align_params(self, p, updates, owner) for p in (params.fast, params.slow))
        return LookaheadParams(fast, slow)
