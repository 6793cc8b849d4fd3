"""What an optimizer passes on to its parts over a run: schedules in the place of the numbers that follow its schedules.

`transform()` is called with the values of one step. Which of its numbers depend on which schedule is read from a trace
of it, so that it doesn't matter what the optimizer, or the function of a `FromFactory`, computes from them.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Float

from .._plugin.arrays import sources_of, tracing
from .._plugin.transforms import has_stateful_schedule, is_schedule, schedule_states, with_current_values
from .._plugin.trees import key_names
from ..schedules import AbstractSchedule, AbstractStatefulSchedule


class PassedOn(AbstractSchedule):
    """A number inside an optimizer that depends on schedules in its fields, as a schedule itself.

    Args:
        schedules: the schedules.
        fields_of_optimizer: the names of the fields that hold them.
        optimizer: the optimizer, if it computes the number; None if it is the value of the only schedule.
        index: which of the numbers in the transform of the optimizer it is, in JAX's order.
    """

    schedules: tuple[AbstractSchedule, ...]
    fields_of_optimizer: tuple[str, ...] = eqx.field(static=True)
    optimizer: Any = None
    index: int = eqx.field(static=True, default=0)

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """Return the number at a step."""
        if self.optimizer is None:
            return self.schedules[0](step)
        with tracing():
            now = with_current_values(self.optimizer, step, schedule_states(self.optimizer))
            return jtu.tree_leaves(now.transform())[self.index]

    def _title(self) -> str:
        return _titles(self.schedules, self.optimizer is not None)


class PassedOnWithState(AbstractStatefulSchedule):
    """A number inside an optimizer that depends on stateful schedules, of which the values over a run are not known.

    Args:
        number: its value at the first step.
        name: the schedules, as in a table.
        fields_of_optimizer: the names of the fields that hold them.
    """

    number: Any
    name: str = eqx.field(static=True)
    fields_of_optimizer: tuple[str, ...] = eqx.field(static=True)

    def init(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def update(self, state: Any, **extra: Any) -> tuple[()]:
        """Return nothing."""
        del extra
        return state

    def __call__(self, state: Any, **extra: Any) -> Any:
        """Return the value at the first step."""
        del state, extra
        return self.number

    def _title(self) -> str:
        return self.name


def _titles(schedules: Sequence[Any], is_computed: bool) -> str:
    titles = ", ".join(schedule._title() for schedule in schedules)
    return f"f({titles})" if is_computed else titles


def transform_over_run(optimizer: Any) -> Any:
    """Return the `transform()` of an optimizer, with a schedule in the place of each number that follows one.

    Args:
        optimizer: the optimizer.
    """
    optimizer = optimizer._completed()
    found, treedef = jtu.tree_flatten_with_path(optimizer, is_leaf=is_schedule)
    first = with_current_values(optimizer, 0, schedule_states(optimizer))
    transform = first.transform()
    if not any(is_schedule(x) for _, x in found):
        return transform
    values = jtu.tree_leaves(first, is_leaf=is_schedule)
    # A part that counts its own steps keeps its schedules.
    places = [i for i, (_, x) in enumerate(found) if is_schedule(x) and not is_schedule(values[i])]

    def numbers(given: Sequence[Array]) -> list[Any]:
        now = dict(zip(places, given, strict=True))
        with tracing():
            return jtu.tree_leaves(treedef.unflatten([now.get(i, x) for i, x in enumerate(values)]).transform())

    try:
        jaxpr = jax.make_jaxpr(numbers)([values[i] for i in places]).jaxpr
    except Exception:  # the function of a user may need the values
        return transform

    def over_run(index: int, x: Any, number: Any, sources: frozenset[int]) -> Any:
        on = [places[i] for i in sorted(sources)]
        schedules, fields = tuple(found[i][1] for i in on), tuple(key_names(found[i][0])[0] for i in on)
        is_computed = number not in jaxpr.invars
        if not on:
            return x
        if any(map(has_stateful_schedule, schedules)):
            return PassedOnWithState(x, _titles(schedules, is_computed), fields)
        return PassedOn(schedules, fields, optimizer if is_computed else None, index)

    leaves, inside = jtu.tree_flatten(transform)
    rows = zip(leaves, jaxpr.outvars, sources_of(jaxpr), strict=True)
    return inside.unflatten([over_run(i, *row) for i, row in enumerate(rows)])
