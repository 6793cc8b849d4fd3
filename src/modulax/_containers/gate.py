"""`AbstractGate`: a container that runs its transform at some steps only."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from .._protocol.container import AbstractContainer
from .._protocol.transform import AbstractTransform, zeros_returned
from .._support.types import Params, State, Updates
from .._support.varying import cond

T = TypeVar("T")


class AbstractGate(AbstractContainer):
    """A container that runs its only part at some steps; at the others, the updates are zero.

    In `step`, the parameters move in the branch that computes the updates. XLA fuses the two there and works in place;
    after a `cond`, it would write the updates to memory and read them again.
    """

    @abc.abstractmethod
    def gate(
        self,
        updates: Updates,
        state: State,
        params: Params | None,
        extra: Mapping[str, Any],
        apply: Callable[[Updates], T],
        skipped: T,
    ) -> tuple[T, State]:
        """Run the part, `step_if` for example, and return `apply` of its updates, or `skipped`, and the new state.

        Args:
            updates: the gradients.
            state: the state of this container.
            params: the parameters, or None if `update` was called without them.
            extra: the extra arguments of `update`.
            apply: a function of the updates of the part.
            skipped: the result of `apply` if nothing moves.
        """

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Run one step of the inner transform, or return zeros."""
        (part,) = self.each_part(state)
        zeros = zeros_returned(part.transform, updates, part.state, params, extra)
        return self.gate(updates, state, params, extra, lambda new: new, zeros)

    # Overridden for the reason that the class gives. `update` would check the arguments.
    def take_step(
        self,
        updates: Updates,
        state: State,
        params: Params | None,
        extra: Mapping[str, Any],
        apply: Callable[[Updates], T],
        skipped: T,
    ) -> tuple[T, State]:
        """Run one step of the inner transform and apply its updates, or return `skipped`.

        Args:
            updates: the gradients.
            state: the state of this container.
            params: the parameters.
            extra: the extra arguments of `update`.
            apply: a function of the updates.
            skipped: the result of `apply` if nothing moves.
        """
        self.check_call(updates, params, extra)
        with jax.named_scope(type(self).__name__):
            return self.gate(updates, state, params, extra, apply, skipped)


def step_if(
    is_open: jax.Array,
    inner: AbstractTransform,
    updates: Updates,
    inner_state: State,
    params: Params | None,
    extra: Mapping[str, Any],
    apply: Callable[[Updates], T],
    skipped: T,
) -> tuple[T, State]:
    """Run one step of the transform and apply its updates if `is_open`; else return `skipped` and the old state."""
    return cond(
        is_open,
        lambda: inner.take_step(updates, inner_state, params, extra, apply, skipped),
        lambda: (skipped, inner_state),
    )
