"""`AbstractGate`: a container that runs its transform at some steps only."""

import abc
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._protocol.container import AbstractContainer
from .._protocol.transform import AbstractTransform, Move, zeros_returned
from .._support.types import Params, State, Updates
from .._support.varying import cond
from ..tree._math import choose

T = TypeVar("T")


class AbstractGate(AbstractContainer):
    """A container that runs its only part at some steps; at the others, the updates are zero.

    In `step`, the parameters move in the branch that computes the updates. XLA fuses the two there and works in place;
    after a `cond`, it would write the updates to memory and read them again.
    """

    @abc.abstractmethod
    def gate(self, updates: Updates, state: State, move: Move[T]) -> tuple[T, State]:
        """Run the part, by `step_if` for example, or skip it; return the result of `move.apply`, and the new state.

        Args:
            updates: the gradients.
            state: the state of this container.
            move: the other arguments of `update`, and what becomes of the updates.
        """

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Run one step of the inner transform, or return zeros."""
        (part,) = self.each_part(state)
        zeros = zeros_returned(part.transform, updates, part.state, params, extra)
        return self.gate(updates, state, Move(params, extra, lambda new: new, zeros))

    # Overridden for the reason that the class gives. `update` would check the arguments.
    def _take_step(self, updates: Updates, state: State, move: Move[T]) -> tuple[T, State]:
        """Run one step of the inner transform and apply its updates, or skip it."""
        self._check_call(updates, move.params, move.extra)
        # The entry point of `update` opens this scope otherwise.
        with jax.named_scope(type(self).__name__):
            return self.gate(updates, state, move)


def step_if(
    is_open: jax.Array, inner: AbstractTransform, updates: Updates, inner_state: State, move: Move[T]
) -> tuple[T, State]:
    """Run one step of the transform and apply its updates if `is_open`; else skip it, and return the old state."""
    return cond(
        is_open,
        lambda: inner._take_step(updates, inner_state, move),
        lambda: (move.skipped, inner_state),
    )


def step_unless_bad(
    is_good: jax.Array, inner: AbstractTransform, updates: Updates, inner_state: State, move: Move[T]
) -> tuple[T, State]:
    """`step_if` where nearly every step is taken: the step is computed in any case, and selected.

    XLA fuses the selection with the step. At a `cond`, it copies the parameters and the state on a GPU, which doubles
    the bytes that a step of AdamW moves.
    """
    # Zeros, because a NaN would reach the gradients of a loss through many steps also where it was not selected.
    good = jtu.tree_map(lambda g: jnp.where(is_good, g, jnp.zeros_like(g)), updates)
    moved = inner._take_step(good, inner_state, move)
    return choose(is_good, moved, (move.skipped, inner_state))
