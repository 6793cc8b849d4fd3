"""Several small batches for one step."""

import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, PyTree

from .._protocol.container import AbstractContainer, part
from .._protocol.fields import Hyperparameter, number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock
from .._support.arithmetic import abs_sq, at_least_float32, safe_increment, zeros_in
from .._support.checks import AT_LEAST_ONE, boolean
from .._support.module import AbstractState, like_params, nested, shared, with_fields
from .._support.types import Count, Params, State, Updates
from ..tree._align import align, check_same_shapes
from ..tree._math import total


class MultiStepsState(AbstractState):
    """The state of `MultiSteps`.

    `mini_step` counts the batches since the last step and `gradient_step` the steps; `acc_grads` is the mean or the
    sum so far, and `skip_state` whatever `should_skip` reported at the last call.
    """

    mini_step: Count = shared()
    gradient_step: Count = shared()
    inner_opt_state: State = nested()
    acc_grads: PyTree = like_params()
    skip_state: PyTree = shared()


class MultiSteps(AbstractContainer):
    """Accumulates the updates of `every_k` calls and hands their mean to a transform: a large batch in small parts.

    Between two steps the updates are zero and the inner transform does not run. The accumulator starts afresh after
    each step, so an infinity in one batch reaches the inner transform once, in that step (which a transform with
    moments may remember); `should_skip` keeps it out altogether:

        MultiSteps(AdamW(1e-3), 4, should_skip=skip_not_finite)

    Args:
        inner: the transform that sees the accumulated updates.
        every_k: how many calls make a step; a schedule of the number of steps done, for a batch that grows.
        use_grad_mean: whether to average; else the sum is handed on.
        should_skip: a function of `(updates, gradient_step, params)` that returns whether to leave this batch out, and
            a tree of arrays to keep in `state.skip_state`, such as `skip_not_finite`.
        accumulator_dtype: the dtype of the accumulator; by default the parameter's, at least float32.
    """

    inner: AbstractTransform = part(state="inner_opt_state")
    every_k: Hyperparameter = number(needs=AT_LEAST_ONE)
    use_grad_mean: bool = eqx.field(static=True, default=True)
    should_skip: Callable[[Updates, Array, Params | None], tuple[Bool[Array, ""], PyTree]] | None = eqx.field(
        static=True, default=None
    )
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)

    clock: ClassVar[Clock] = "pace"

    def init(self, params: Params) -> MultiStepsState:
        """The inner state, and an empty accumulator."""
        step = jnp.zeros((), jnp.int32)
        _, skip_state = self._skip(jtu.tree_map(jnp.zeros_like, params), step, params)
        return MultiStepsState(
            mini_step=jnp.zeros((), jnp.int32),
            gradient_step=step,
            inner_opt_state=self.inner.init(params),
            acc_grads=jtu.tree_map(lambda p: zeros_in(p, self._dtype(p)), params),
            skip_state=skip_state,
        )

    def update(
        self, updates: Updates, state: MultiStepsState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, MultiStepsState]:
        """Takes one batch in, and makes a step if it was the last of `every_k`."""
        every_k = resolve(self.every_k, state.gradient_step)
        leaves, treedef = jtu.tree_flatten(updates)
        acc_leaves, rebuild = align(state.acc_grads, updates, "MultiSteps.update")
        check_same_shapes(updates, acc_leaves, "MultiSteps.update")
        n = safe_increment(state.mini_step)
        skip, skip_state = self._skip(updates, state.gradient_step, params)
        acc_grads = [self._accumulate(a, g, n) for a, g in zip(acc_leaves, leaves, strict=True)]

        def emit() -> tuple[Updates, MultiStepsState]:
            new, inner_opt_state = self.inner.update(
                treedef.unflatten(acc_grads), state.inner_opt_state, params, **extra
            )
            new = jtu.tree_map(lambda u, g: u.astype(g.dtype), new, updates)
            return new, MultiStepsState(
                mini_step=jnp.zeros_like(state.mini_step),
                gradient_step=safe_increment(state.gradient_step),
                inner_opt_state=inner_opt_state,
                acc_grads=rebuild([jnp.zeros_like(a) for a in acc_leaves]),
                skip_state=skip_state,
            )

        def hold() -> tuple[Updates, MultiStepsState]:
            kept = [jnp.where(skip, old, new) for old, new in zip(acc_leaves, acc_grads, strict=True)]
            return jtu.tree_map(jnp.zeros_like, updates), MultiStepsState(
                mini_step=jnp.where(skip, state.mini_step, n),
                gradient_step=state.gradient_step,
                inner_opt_state=state.inner_opt_state,
                acc_grads=rebuild(kept),
                skip_state=skip_state,
            )

        return jax.lax.cond(jnp.logical_not(skip) & (n.astype(every_k.dtype) >= every_k), emit, hold)

    def resolved(self, state: MultiStepsState) -> "MultiSteps":
        """Return this container with `every_k` at its current value."""
        return with_fields(self, every_k=resolve(self.every_k, state.gradient_step))

    def has_updated(self, state: MultiStepsState) -> Bool[Array, ""]:
        """Whether the last call made a step."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def _dtype(self, p: Array) -> Any:
        return at_least_float32(p.dtype) if self.accumulator_dtype is None else self.accumulator_dtype

    def _accumulate(self, acc: Array, g: Array, n: Array) -> Array:
        dtype = at_least_float32(acc.dtype, g.dtype)
        a, g = acc.astype(dtype), g.astype(dtype)
        return (a + (g - a) / n.astype(dtype) if self.use_grad_mean else a + g).astype(acc.dtype)

    def _skip(self, updates: Updates, step: Array, params: Params | None) -> tuple[Array, PyTree]:
        if self.should_skip is None:
            return jnp.zeros((), bool), ()
        skip, skip_state = self.should_skip(updates, step, params)
        return boolean("`MultiSteps(should_skip=...)`", skip, " and a tree"), skip_state


def skip_not_finite(
    updates: Updates, gradient_step: ArrayLike, params: Params | None
) -> tuple[Bool[Array, ""], dict[str, Array]]:
    """Leaves out batches with a NaN or an infinity in them: `MultiSteps(..., should_skip=skip_not_finite)`.

    Args:
        updates: the updates of the batch.
        gradient_step: not looked at.
        params: not looked at.

    Returns:
        whether there is one, and `{"should_skip": ..., "num_not_finite": ...}`: the same, and how many there are.
    """
    del gradient_step, params
    bad = [jnp.sum(jnp.logical_not(jnp.isfinite(u)), dtype=jnp.int32) for u in jtu.tree_leaves(updates)]
    num_not_finite = functools.reduce(operator.add, bad, jnp.zeros((), jnp.int32))
    should_skip = num_not_finite > 0
    return should_skip, {"should_skip": should_skip, "num_not_finite": num_not_finite}


def skip_large_updates(
    updates: Updates, gradient_step: ArrayLike, params: Params | None, max_squared_norm: ArrayLike
) -> tuple[Bool[Array, ""], dict[str, Array]]:
    """Leaves out batches whose updates are large altogether, or not finite.

        MultiSteps(..., should_skip=functools.partial(skip_large_updates, max_squared_norm=100.0))

    Make the partial function once: a new one is another program, and the limit inside is no hyperparameter.

    Args:
        updates: the updates of the batch.
        gradient_step: not looked at.
        params: not looked at.
        max_squared_norm: the square of the norm from which on a batch is left out.

    Returns:
        whether the square of the norm is not below the limit, and `{"should_skip": ..., "norm_squared": ...}`: the
        same, and that square.
    """
    del gradient_step, params
    norm_squared = total(abs_sq, updates)
    # Asked in this way, because a NaN is not below the limit either.
    should_skip = jnp.logical_not(norm_squared < max_squared_norm)
    return should_skip, {"should_skip": should_skip, "norm_squared": norm_squared}
