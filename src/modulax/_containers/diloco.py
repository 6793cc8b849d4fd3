"""`DiLoCo`: workers that train apart, and meet every few hundred steps."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import DTypeLike, PyTree

from .._protocol.container import in_dtypes_of, part, required_part
from .._protocol.fields import Number, number
from .._protocol.step import apply_updates
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import copy_in, default_float, safe_increment
from .._support.checks import WHOLE
from .._support.module import AbstractState, like_params, nested, shared
from .._support.placement import typed_like
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from .._transforms.momentum import Trace
from .._transforms.scaling import ScaleByLearningRate
from ..tree._align import align
from ..tree._math import widened
from .chain import Chain
from .order import AbstractSteering


class DiLoCoState(AbstractState):
    """State of `DiLoCo`: states of both optimizers, steps since the last round, and the parameters after it, `outer`.

    `outer` and `outer_state` are the same in all workers.
    """

    inner_state: State = nested()
    outer_state: State = nested()
    steps_since_sync: Count = shared(metric=True)
    outer: PyTree = like_params(copied=True)


class DiLoCo(AbstractSteering):
    r"""Distributed low-communication training (DiLoCo): workers train apart, and an outer optimizer merges them.

    $$
    \begin{aligned}
    \theta^i_{t,0} &= \theta_t, \qquad \theta^i_{t,h+1} = \theta^i_{t,h} + u^i_{t,h}, \quad h = 0, \dots, H - 1 \\
    \Delta_t &= \frac{1}{k} \sum_{i=1}^k (\theta_t - \theta^i_{t,H}) \\
    \theta_{t+1} &= \theta_t + U_t, \qquad U_t \text{ the step of the outer optimizer for the gradient } \Delta_t
    \end{aligned}
    $$

    for $k$ workers, where $u^i_{t,h}$ is the step of the inner optimizer of worker $i$ for a gradient of its own batch.
    The inner states are kept from round to round. The outer optimizer is SGD with Nesterov momentum by default.

        DiLoCo(AdamW(4e-4, b2=0.95, weight_decay=0.1), sync_period=500, axis_name="workers")

    Every worker has its own parameters and state. Call `update` and `step` where the axis of workers is mapped: inside
    `jax.shard_map` over an axis of a mesh, or inside `jax.vmap` with an `axis_name`. In `shard_map`, workers
    communicate only in the last step of a round; `vmap` computes the average in every step, and is for trials. Without
    `axis_name` there is one worker.

    The evaluation parameters are $\theta_t$, those after the last round, which all workers share. `DiLoCo` determines
    the parameters itself, so put it last in a chain.

    Args:
        inner_optimizer: optimizer of each worker.
        sync_period: number $H$ of inner steps in a round.
        outer_optimizer: optimizer that steps by the differences $\Delta_t$; its schedules count rounds. By default,
            Nesterov momentum of 0.9 with the learning rate 0.7, as in the paper:
            `Chain(Trace(0.9, nesterov=True), ScaleByLearningRate(0.7))`.
        axis_name: name of the mapped axis, or names of the axes, over which workers are; None for one worker.

    References:
        Douillard et al., [DiLoCo: Distributed Low-Communication Training of Language
        Models](https://arxiv.org/abs/2311.08105), 2023.
    """

    inner_optimizer: AbstractTransform = required_part()
    sync_period: Number = number(500.0, needs=WHOLE)
    outer_optimizer: AbstractTransform = part(
        default_factory=lambda: Chain(Trace(0.9, nesterov=True), ScaleByLearningRate(0.7)),
        state="outer_state",
        auxiliary=True,
    )
    axis_name: str | tuple[str, ...] | None = eqx.field(static=True, default=None, kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ("params",)
    # The way to the parameters after a round, in bfloat16, would be rounded, and not lead there.
    update_dtype: ClassVar[DTypeLike] = jnp.float32

    def init(self, params: Params) -> DiLoCoState:
        """Return the states of both optimizers, and a copy of the parameters as those after a round."""
        return DiLoCoState(
            inner_state=self.inner_optimizer.init(params),
            outer_state=self.outer_optimizer.init(params),
            steps_since_sync=jnp.zeros((), jnp.int32),
            outer=jtu.tree_map(copy_in, params),
        )

    def update(
        self, updates: Updates, state: DiLoCoState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, DiLoCoState]:
        """Run an inner step; after every `sync_period` of them, run an outer step with the other workers."""
        steps, inner_state = self.inner_optimizer.update(updates, state.inner_state, params, **extra)
        n = safe_increment(state.steps_since_sync)
        is_due = n.astype(default_float()) >= self.sync_period
        leaves, put = align(state.outer, updates, "DiLoCo.update")
        old = jtu.tree_structure(updates).unflatten(leaves)

        def meet() -> tuple[Updates, Params, State]:
            reached = apply_updates(params, steps)
            apart = self._mean(jtu.tree_map(jnp.subtract, widened(old), widened(reached)))
            outer_steps, outer_state = self.outer_optimizer.update(apart, state.outer_state, old, **extra)
            new = apply_updates(old, outer_steps)
            way = jtu.tree_map(lambda a, b: a - typed_like(b, a), widened(new), widened(params))
            return jtu.tree_map(lambda x, u: x.astype(u.dtype), way, steps), new, outer_state

        steps = widened(steps)
        # `cond`, because the workers communicate.
        steps, new, outer_state = cond(is_due, meet, lambda: (steps, old, state.outer_state))
        return steps, DiLoCoState(
            inner_state=inner_state,
            outer_state=outer_state,
            steps_since_sync=jnp.where(is_due, jnp.zeros_like(n), n),
            outer=put(jtu.tree_leaves(new)),
        )

    # Overridden because the parameters of a worker are its own between two rounds.
    def eval_params(self, state: DiLoCoState, params: Params) -> Params:
        """Return the parameters after the last round.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return in_dtypes_of(params, state.outer, "DiLoCo.eval_params")

    def _mean(self, tree: PyTree) -> PyTree:
        """The mean over the workers."""
        if self.axis_name is None:
            return tree
        try:
            return jax.lax.pmean(tree, self.axis_name)
        except NameError as error:  # of an axis that is not mapped
            raise ValueError(
                f"`DiLoCo(axis_name={self.axis_name!r})` averages over an axis that is not mapped here. Call `step` "
                f"inside `jax.shard_map` over a mesh with this axis, or inside `jax.vmap(..., "
                f"axis_name={self.axis_name!r})`."
            ) from error
