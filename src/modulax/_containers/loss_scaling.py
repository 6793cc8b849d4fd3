"""`LossScaling`: dynamic loss scaling for gradients in float16."""

from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._protocol.container import AbstractContainer, required_part
from .._protocol.fields import Number, number
from .._protocol.transform import AbstractTransform, zeros_returned
from .._support.arithmetic import at_least_float32, real_dtype, safe_increment
from .._support.checks import AT_LEAST_ONE, FRACTION, POSITIVE, WHOLE
from .._support.module import AbstractState, first_values, nested, shared
from .._support.types import Count, Params, State, Updates
from ..tree._math import all_finite, choose, zeros_unless


class LossScalingState(AbstractState):
    """State of `LossScaling`: the scale `loss_scale` for the next loss, counters, and the inner state.

    `growth_tracker` is the number of steps since the scale changed or a step was skipped, and `skipped_steps` the
    number of all steps that were skipped.
    """

    loss_scale: Float[Array, ""] = shared(starts=lambda rule: rule.init_scale, metric=True)
    growth_tracker: Count = shared(starts=0)
    skipped_steps: Count = shared(starts=0, metric=True)
    inner_state: State = nested()


class LossScaling(AbstractContainer):
    r"""Dynamic loss scaling for float16, like PyTorch's `GradScaler` and Flax's `DynamicScale`.

    Gradients below $6 \cdot 10^{-8}$ are zero in float16. Multiply the loss by the scale, so that the gradients
    survive; the container divides them by it, in float32. If a gradient is infinite or NaN, the step is skipped: the
    updates are zero, the inner state stays, and the scale is multiplied by `backoff_factor`. After
    `growth_interval` steps without such a gradient, it is multiplied by `growth_factor`.

        optimizer = LossScaling(MasterWeights(AdamW(1e-4)))

        def scaled_loss(params, batch, state):
            return loss(params, batch).astype(jnp.float32) * loss_scale(state)

        grads = jax.grad(scaled_loss)(params, batch, state)
        params, state = optimizer.step(grads, state, params)

    Put it outermost, or inside `MultiSteps`: a transform before it, such as a clipping, would see the scaled gradients.
    Extra arguments are passed on unchanged, so `value` is the loss without the scale. bfloat16 has the range of float32
    and needs no loss scaling.

    The rule is that of `torch.amp.GradScaler`. The scale stays finite and positive.

    Args:
        inner: the inner transform.
        init_scale: the first scale.
        growth_factor: factor by which the scale grows.
        backoff_factor: factor by which the scale is multiplied when a step is skipped.
        growth_interval: number of steps in a row with finite gradients after which the scale grows.

    References:
        Micikevicius et al., [Mixed Precision Training](https://arxiv.org/abs/1710.03740), 2017.
    """

    _keeps = "direction"

    inner: AbstractTransform = required_part()
    init_scale: Number = number(2.0**15, needs=POSITIVE)
    growth_factor: Number = number(2.0, needs=AT_LEAST_ONE)
    backoff_factor: Number = number(0.5, needs=FRACTION)
    growth_interval: Number = number(2000, needs=WHOLE)

    def init(self, params: Params) -> LossScalingState:
        """Return the first scale, counters at zero, and the inner state."""
        return LossScalingState(**first_values(LossScalingState, self), inner_state=self.inner.init(params))

    def update(
        self, updates: Updates, state: LossScalingState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, LossScalingState]:
        """Divide the gradients by the scale, and run one step of the inner transform if they are finite."""
        scale = state.loss_scale

        def unscaled(g: Array) -> Array:
            # In float32: the gradients divided by 2**15 would be subnormal or zero in float16.
            dtype = at_least_float32(g.dtype)
            return g.astype(dtype) / scale.astype(real_dtype(dtype)).astype(dtype)

        grads = jtu.tree_map(unscaled, updates)
        is_finite = all_finite(grads)
        # Not a `cond`, which XLA cannot fuse: with AdamW a step would take almost twice as long.
        with zeros_unless(is_finite, grads) as finite:
            new, new_inner_state = self.inner.update(finite, state.inner_state, params, **extra)
        zeros = zeros_returned(self.inner, updates, state.inner_state, params, extra)
        new = choose(is_finite, jtu.tree_map(lambda u, zero: u.astype(zero.dtype), new, zeros), zeros)
        inner_state = choose(is_finite, new_inner_state, state.inner_state)
        n = safe_increment(state.growth_tracker)
        is_due = is_finite & (n.astype(scale.dtype) >= self.growth_interval)
        grown = scale * self.growth_factor
        # A scale of zero would make every later gradient NaN.
        shrunk = jnp.maximum(scale * self.backoff_factor, jnp.finfo(scale.dtype).tiny)
        return new, LossScalingState(
            # An infinite scale would make every later loss infinite.
            loss_scale=jnp.where(is_finite, jnp.where(is_due & jnp.isfinite(grown), grown, scale), shrunk),
            growth_tracker=jnp.where(is_finite & jnp.logical_not(is_due), n, 0),
            skipped_steps=jnp.where(is_finite, state.skipped_steps, safe_increment(state.skipped_steps)),
            inner_state=inner_state,
        )


def loss_scale(state: State) -> Float[Array, ""]:
    """Return the scale of `LossScaling` by which to multiply the next loss.

        grads = jax.grad(lambda p: loss(p).astype(jnp.float32) * loss_scale(state))(params)

    Args:
        state: the state of `LossScaling`, or of a transform with exactly one `LossScaling` inside.

    Raises:
        ValueError: if there is not exactly one state of `LossScaling`.
    """
    nodes = jtu.tree_leaves(state, is_leaf=lambda x: isinstance(x, LossScalingState))
    states = [x for x in nodes if isinstance(x, LossScalingState)]
    if len(states) != 1:
        raise ValueError(
            f"`loss_scale` needs exactly one state of `LossScaling`, and found {len(states)} in "
            f"`{type(state).__name__}`. Call it with the state of `LossScaling(...)`, from `init` or `update`."
        )
    return states[0].loss_scale
