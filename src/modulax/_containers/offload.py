"""`Offload`: optimizer state in the memory of the host."""

from typing import Any

import jax
import jax.tree_util as jtu
from jaxtyping import Array

from .._protocol.container import AbstractContainer, required_part
from .._protocol.transform import AbstractTransform
from .._support.checks import listing
from .._support.module import AbstractState, nested
from .._support.placement import shard_like
from .._support.types import P, Params, State, Updates
from ..tree._state import owners


class OffloadState(AbstractState):
    """State of `Offload`: the inner state, with its arrays in host memory."""

    inner_state: State = nested()


class Offload(AbstractContainer):
    """Keeps the state of a transform in host memory, for models whose state does not fit on the device.

        optimizer = Offload(AdamW(1e-3))

    Each step copies the state to the device, updates it there, and copies it back, within the compiled program.
    Parameters and gradients stay on the device, and so do scalars of the state, such as step counts. The results are
    those of the inner transform. A step takes longer by the time of both copies. With several devices, shard the state
    first, `state_sharding(Offload(...), params, zero="data")`: each device then copies only its own part.

    Put it outermost. Containers that run their inner transform in a branch of `jax.lax.cond`, such as `ApplyIfFinite`
    and `MultiSteps`, or compute with its whole state, must be inside: JAX 0.10 cannot `vmap` or differentiate a `cond`
    whose branches return arrays in host memory.

    `modulax.checkpoint.restore` restores to the memory of the template. Other formats restore to the device, and the
    next step moves the state. JAX 0.10 pairs donated buffers with results by shape, even if their memories differ, and
    aborts. `step(..., donate=True)` passes them in the right order. In your own `jax.jit`, return donated arguments in
    their order, or pass `out_shardings`.

    Args:
        inner: the inner transform.

    References:
        Ren et al., [ZeRO-Offload: Democratizing Billion-Scale Model Training](https://arxiv.org/abs/2101.06840), 2021.
    """

    _keeps = "direction"

    inner: AbstractTransform = required_part()

    def init(self, params: Params) -> OffloadState:
        """Return the inner state, moved to host memory."""
        device = jax.local_devices()[0]
        kinds = [memory.kind for memory in device.addressable_memories()]
        if "pinned_host" not in kinds:
            raise ValueError(
                f"`Offload` needs `pinned_host` memory, and devices of the platform {device.platform!r} have no such "
                f"memory. They have {listing(kinds)}. Use the inner transform without `Offload`, or divide its state "
                "over several devices: `state_sharding(optimizer, params, zero=...)`."
            )
        inner_state = self.inner.init(params)
        leaves, treedef = jtu.tree_flatten(inner_state)
        arrays, indices = jtu.tree_leaves(params), owners(inner_state, params)
        # JAX pins what a program returns in another memory to its devices. Without the parameters, these are the first.
        leaves = [x if i is None else shard_like(x, arrays[i]) for x, i in zip(leaves, indices, strict=True)]
        return OffloadState(_moved(treedef.unflatten(leaves), jax.memory.Space.Host))

    def update(
        self, updates: Updates, state: OffloadState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OffloadState]:
        """Run one step of the inner transform on the device, and move its state back."""
        # The operands of one operation have to be in one memory.
        inner_state = _moved(state.inner_state, jax.memory.Space.Device)
        updates, inner_state = self.inner.update(updates, inner_state, params, **extra)
        return updates, OffloadState(_moved(inner_state, jax.memory.Space.Host))

    # Overridden because the average of the inner transform is in the memory of the host.
    def eval_params(self, state: OffloadState, params: P) -> P:
        """Return the evaluation parameters of the inner transform.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return super().eval_params(OffloadState(_moved(state.inner_state, jax.memory.Space.Device)), params)


def _moved(state: State, space: Any) -> State:
    """Move every array of a state except scalars, which schedules and logs read."""

    def move(x: Array) -> Array:
        if x.ndim == 0 or jax.typeof(x).memory_space == space:
            return x
        # With its source, a cotangent moves back there. JAX 0.10 leaves it where it is otherwise.
        return jax.device_put(x, space, src=jax.typeof(x).memory_space)

    return jtu.tree_map(move, state)
