"""`MultiSteps`: gradient accumulation."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, PyTree

from .._protocol.container import required_part
from .._protocol.fields import Number, required_number
from .._protocol.schedule_values import resolve
from .._protocol.transform import AbstractTransform, Clock, Effect, Move, everything_in, zeros_returned
from .._support.arithmetic import abs_sq, at_least_float32, safe_increment, zeros_in
from .._support.checks import WHOLE, boolean
from .._support.module import AbstractState, like_params, nested, shared, with_fields
from .._support.tracing import call_user
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from ..tree._align import align, check_same_shapes
from ..tree._math import total
from .gate import AbstractGate, hidden_infinities
from .gradient_noise import GradientNoiseState, after_step, deviations_with, no_noise

T = TypeVar("T")


class MultiStepsState(AbstractState):
    """State of `MultiSteps`: counters, inner state, and accumulated gradients.

    `mini_step` counts the mini-batches since the last step, and `gradient_step` the steps. `acc_grads` is the mean or
    sum of the gradients so far, and `skip_state` the second result of `should_skip` at the last call. `noise` is None
    without `noise_scale=True`.
    """

    optax_fields = ("mini_step", "gradient_step", "inner_opt_state", "acc_grads", "skip_state")

    mini_step: Count = shared()
    gradient_step: Count = shared(metric=True)
    inner_opt_state: State = nested()
    acc_grads: PyTree = like_params(
        exact=True,
        form=lambda rule: rule.use_grad_mean,
        scale=lambda rule, state: jnp.maximum(state.mini_step, 1) if rule.use_grad_mean else 1,
    )
    skip_state: PyTree = shared(metric=True)
    noise: GradientNoiseState | None = shared(None)


class MultiSteps(AbstractGate):
    r"""Gradient accumulation: averages the gradients of `every_k` mini-batches for one step of the inner transform.

    In between, the updates are zero and the inner transform does not run. The accumulator is reset after each step, so
    a NaN or an infinity in one mini-batch affects that step only (and the moments of the inner transform, if it has
    any). To skip such batches:

        MultiSteps(AdamW(1e-3), 4, should_skip=skip_not_finite)

    With `noise_scale=True`, `metrics(state)` has the gradient noise scale, $\operatorname{tr} \Sigma / |G|^2$, the
    number of mini-batches per step beyond which more examples save few steps:

        MultiSteps(AdamW(1e-3), 4, noise_scale=True)

    It is in units of mini-batches, as `every_k` is. Multiply it by their size for the critical batch size in examples,
    which `critical_batch` returns. Numerator and denominator, `grad_variance` and `grad_squared_norm`, are averaged
    over about a hundred steps. Zero stands for no noise and for no measurement yet, infinity for noise that hides the
    gradient. Steps of one mini-batch and of gradients that are not finite are not counted.

    Args:
        inner: transform that receives the accumulated gradients.
        every_k: number of mini-batches per step; a schedule of the number of steps done gives a growing batch size.
        use_grad_mean: whether to average the gradients; otherwise they are summed.
        should_skip: function of `(updates, gradient_step, params)` that returns whether to skip this mini-batch, and a
            tree of arrays to store in `state.skip_state`; for example `skip_not_finite`. It is traced once.
        accumulator_dtype: dtype of the accumulator; by default that of the parameters, at least float32.
        noise_scale: whether to measure the gradient noise scale, at the cost of a norm for each mini-batch.
    """

    inner: AbstractTransform = required_part(state="inner_opt_state")
    every_k: Number = required_number(needs=WHOLE)
    use_grad_mean: bool = eqx.field(static=True, default=True)
    should_skip: Callable[[Updates, Array, Params | None], tuple[Bool[Array, ""], PyTree]] | None = eqx.field(
        static=True, default=None
    )
    accumulator_dtype: DTypeLike | None = eqx.field(static=True, default=None)
    noise_scale: bool = eqx.field(static=True, default=False)

    @property
    def _gives_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A sum is larger than the gradients of a batch, so that moments of one are none of the other."""
        return self.use_grad_mean

    @property
    def is_arraywise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The noise scale is that of all arrays together."""
        return not self.noise_scale

    clock: ClassVar[Clock] = "pace"

    def check(self) -> None:
        is_number = isinstance(self.every_k, (np.generic, np.ndarray)) and not np.ndim(self.every_k)
        if self.noise_scale and is_number and self.every_k == 1:
            raise ValueError(
                "`MultiSteps(..., noise_scale=True)` compares the gradients of the mini-batches of a step, of which "
                "`every_k=1` has only one. Divide each batch into two, and write `MultiSteps(..., every_k=2, "
                "noise_scale=True)`."
            )

    def _effect(self, tree: Params) -> Effect:
        del tree
        warnings = [] if self.should_skip is None else hidden_infinities("should_skip", self.inner)
        if any("previous_grad" in x.needs for x in everything_in(self.inner)):
            warnings.append(
                "`MultiSteps` averages the gradients of several mini-batches, and not `previous_grad`, of which its "
                "optimizer gets the last one. Average both before the optimizer, and leave `MultiSteps` out."
            )
        return Effect(warnings=warnings)

    def init(self, params: Params) -> MultiStepsState:
        """Return the inner state, and zeros as accumulated gradients."""
        step = jnp.zeros((), jnp.int32)
        # A `scan` over steps needs the structure of `skip_state` from the start.
        _, skip_state = self._skip(jtu.tree_map(jnp.zeros_like, params), step, params)
        return MultiStepsState(
            mini_step=jnp.zeros((), jnp.int32),
            gradient_step=step,
            inner_opt_state=self.inner.init(params),
            acc_grads=jtu.tree_map(lambda p: zeros_in(p, self._dtype(p)), params),
            skip_state=skip_state,
            noise=no_noise() if self.noise_scale else None,
        )

    def gate(self, updates: Updates, state: MultiStepsState, move: Move[T]) -> tuple[T, MultiStepsState]:
        """Accumulate the gradients of one mini-batch, and run the inner transform after the last of `every_k`."""
        if self.noise_scale and state.noise is None:
            raise ValueError(
                "`MultiSteps(..., noise_scale=True)` was given the state of an optimizer without it. Make a new state "
                "from the old one: `state, report = checkpoint.carry(optimizer, params, old_optimizer, old_state)`."
            )
        every_k = resolve(self.every_k, state.gradient_step)
        leaves, treedef = jtu.tree_flatten(updates)
        acc_leaves, rebuild = align(state.acc_grads, updates, "MultiSteps.update")
        check_same_shapes(updates, acc_leaves, "MultiSteps.update")
        n = safe_increment(state.mini_step)
        skip, skip_state = self._skip(updates, state.gradient_step, move.params)

        def accumulated() -> list[Array]:
            # In each branch, where XLA fuses it with what reads it.
            return [self._accumulate(a, g, n) for a, g in zip(acc_leaves, leaves, strict=True)]

        def deviations(noise: GradientNoiseState) -> Array:
            return deviations_with(noise.deviations, self._means(acc_leaves, state.mini_step), leaves, n)

        zeros = zeros_returned(self.inner, updates, state.inner_opt_state, move.params, move.extra)

        def applied(new: Updates) -> T:
            # The mean is wider than low-precision gradients, and the branches must agree in their dtypes.
            return move.apply(jtu.tree_map(lambda u, z: u.astype(z.dtype), new, zeros))

        def emit() -> tuple[T, MultiStepsState]:
            sums, noise = accumulated(), state.noise
            moved, inner_opt_state = self.inner._take_step(
                treedef.unflatten(sums), state.inner_opt_state, dataclasses.replace(move, apply=applied)
            )
            return moved, MultiStepsState(
                mini_step=jnp.zeros_like(state.mini_step),
                gradient_step=safe_increment(state.gradient_step),
                inner_opt_state=inner_opt_state,
                acc_grads=rebuild([jnp.zeros_like(a) for a in acc_leaves]),
                skip_state=skip_state,
                noise=None if noise is None else after_step(noise, deviations(noise), self._means(sums, n), n),
            )

        def hold() -> tuple[T, MultiStepsState]:
            # A skipped mini-batch leaves no trace, not even the NaN for which it was skipped.
            kept = [jnp.where(skip, old, new) for old, new in zip(acc_leaves, accumulated(), strict=True)]
            noise = state.noise
            if noise is not None:
                noise = with_fields(noise, deviations=jnp.where(skip, noise.deviations, deviations(noise)))
            mini_step = jnp.where(skip, state.mini_step, n)
            return move.skipped, with_fields(
                state, mini_step=mini_step, acc_grads=rebuild(kept), skip_state=skip_state, noise=noise
            )

        # `cond` and not `where`, because the inner transform would run at every mini-batch. The comparison is not for
        # equality: a schedule may lower `every_k` below the number of mini-batches in the mean.
        return cond(jnp.logical_not(skip) & (n.astype(every_k.dtype) >= every_k), emit, hold)

    def resolved(self, state: MultiStepsState) -> "MultiSteps":
        """Return this container with `every_k` at its current value.

        Args:
            state: the state of this container.
        """
        return with_fields(self, every_k=resolve(self.every_k, state.gradient_step))

    def has_updated(self, state: MultiStepsState) -> Bool[Array, ""]:
        """Return whether the last mini-batch that was not skipped completed a step.

        As in optax, that stays true while the mini-batches directly after a step are skipped.

        Args:
            state: the state that this call returned.
        """
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def _dtype(self, p: Array) -> Any:
        # A mean in bfloat16 would lose small gradients.
        return at_least_float32(p.dtype) if self.accumulator_dtype is None else self.accumulator_dtype

    def _accumulate(self, acc: Array, g: Array, n: Array) -> Array:
        dtype = at_least_float32(acc.dtype, g.dtype)
        a, g = acc.astype(dtype), g.astype(dtype)
        # A running mean stays in the range of the gradients, where the sum of many could overflow.
        return (a + (g - a) / n.astype(dtype) if self.use_grad_mean else a + g).astype(acc.dtype)

    def _means(self, acc: list[Array], n: Array) -> list[Array]:
        """The means of `n` accumulated gradients; of none, zero."""
        if self.use_grad_mean:
            return acc
        return [a / jnp.maximum(n, 1).astype(at_least_float32(a.dtype)) for a in acc]

    def _skip(self, updates: Updates, step: Array, params: Params | None) -> tuple[Array, PyTree]:
        if self.should_skip is None:
            return jnp.zeros((), bool), ()
        skip, skip_state = call_user(self.should_skip, updates, step, params)
        return boolean("`MultiSteps(should_skip=...)`", skip, " and a tree"), skip_state


def skip_not_finite(
    updates: Updates, gradient_step: ArrayLike, params: Params | None
) -> tuple[Bool[Array, ""], dict[str, Array]]:
    """Skip mini-batches whose gradients contain a NaN or an infinity: `MultiSteps(..., should_skip=skip_not_finite)`.

    Args:
        updates: the gradients of the mini-batch.
        gradient_step: ignored.
        params: ignored.

    Returns:
        whether to skip, and a dict with this as `should_skip`, and as `num_not_finite` the number of entries that
        are NaN or infinite.
    """
    del gradient_step, params
    bad = [jnp.sum(jnp.logical_not(jnp.isfinite(u)), dtype=jnp.int32) for u in jtu.tree_leaves(updates)]
    num_not_finite = functools.reduce(operator.add, bad, jnp.zeros((), jnp.int32))
    should_skip = num_not_finite > 0
    return should_skip, {"should_skip": should_skip, "num_not_finite": num_not_finite}


def skip_large_updates(
    updates: Updates, gradient_step: ArrayLike, params: Params | None, max_squared_norm: ArrayLike
) -> tuple[Bool[Array, ""], dict[str, Array]]:
    """Skip mini-batches whose gradients have a large global norm, or are not finite.

        MultiSteps(..., should_skip=functools.partial(skip_large_updates, max_squared_norm=100.0))

    Make the partial function once: each new one compiles another program. The threshold in it is a constant of the
    program, not a hyperparameter.

    Args:
        updates: the gradients of the mini-batch.
        gradient_step: ignored.
        params: ignored.
        max_squared_norm: threshold on the squared global norm; a mini-batch is skipped unless it is below.

    Returns:
        whether to skip, and a dict with this as `should_skip`, and the squared norm as `norm_squared`.
    """
    del gradient_step, params
    norm_squared = total(abs_sq, updates)
    # Not `norm_squared >= max_squared_norm`, which is false for NaN.
    should_skip = jnp.logical_not(norm_squared < max_squared_norm)
    return should_skip, {"should_skip": should_skip, "norm_squared": norm_squared}
