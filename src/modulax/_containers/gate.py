"""`AbstractGate`: a container that runs its transform at some steps only."""

import abc
from typing import Any, TypeVar

import jax

from .._protocol.container import AbstractContainer, AbstractOptimizer
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.transform import AbstractTransform, Move, everything_in, zeros_returned
from .._support.types import Params, State, Updates
from .._support.varying import cond
from ..tree._math import choose, zeros_unless

T = TypeVar("T")


class AbstractGate(AbstractContainer):
    """A container that runs its only part at some steps; at the others, the updates are zero.

    In `step`, the parameters move in the branch that computes the updates. XLA fuses the two there and works in place;
    after a `cond`, it would write the updates to memory and read them again.
    """

    _keeps = "direction"

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


def hidden_infinities(what: str, inner: AbstractTransform) -> list[str]:
    """A sentence if a container skips infinite gradients before `LossScaling` in it sees them.

    Args:
        what: what skips them, a container or an argument.
        inner: the transform in the container.
    """
    if not any(hasattr(transform, "growth_interval") for transform in everything_in(inner)):
        return []
    return [
        f"`{what}` skips infinite gradients, so that `LossScaling` inside does not see them and keeps a scale that is "
        f"too large. `LossScaling` skips such steps itself: put it outermost, or leave `{what}` out."
    ]


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
    """`step_if` where nearly every step is taken.

    A rule that costs one pass over the memory is computed in any case, and its results are selected, which XLA fuses
    with the pass. At a `cond`, a GPU copies parameters and state: twice the bytes of a step of AdamW.
    """
    if not all(_is_one_pass(t) for t in everything_in(inner)):
        return step_if(is_good, inner, updates, inner_state, move)
    with zeros_unless(is_good, updates) as good:
        return choose(is_good, inner._take_step(good, inner_state, move), (move.skipped, inner_state))


def _is_one_pass(transform: AbstractTransform) -> bool:
    """Whether a transform adds at most a pass over its arrays to what is inside it."""
    is_rule = isinstance(transform, (AbstractLeafwise, AbstractOptimizer))
    return is_rule or (isinstance(transform, AbstractContainer) and transform.is_one_pass)
