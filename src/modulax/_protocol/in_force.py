"""The hyperparameters in force at a step: schedules replaced by their values, and the states of stateful ones."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import ArrayLike, PyTree

from .._support.arithmetic import default_float
from .._support.checks import check_extra
from .._support.types import State
from ..tree._math import strong
from ..tree._paths import JoinedNames, join, key_names
from .schedule import AbstractSchedule, AbstractStatefulSchedule, is_schedule, is_stateful
from .transform import AbstractTransform, extra_arguments


def resolve(tree: PyTree, step: ArrayLike) -> PyTree:
    """The tree with every schedule of the step in it replaced by its number at `step`; stateful ones are left alone.

    What lies deeper in the tree and counts its own steps (its `clock`) is left alone too: inside of `MultiSteps` an
    optimizer makes fewer steps than outside.
    """

    def stops(x: Any) -> bool:
        if isinstance(x, AbstractTransform) and x.clock != "caller":
            return x is not tree or x.clock == "pace"
        return is_schedule(x) and not (x is tree and is_stateful(x))

    def number_now(x: Any) -> Any:
        return _as_default_float(x(step)) if isinstance(x, AbstractSchedule) else x

    return jtu.tree_map(number_now, tree, is_leaf=stops)


def _as_default_float(x: Any) -> Any:
    return jnp.asarray(x).astype(default_float())


def schedule_states(tree: PyTree) -> dict[str, State] | None:
    """The states of the stateful schedules in the tree before the first step, by dotted path; None if there are none.

    What lies deeper in the tree and keeps the states of its schedules itself (`keeps_schedules`) is left alone.
    """
    # Copies, because a number of the schedule's that stands in its state too could not be donated with it.
    states = {name: resolve(schedule, 0).init() for name, schedule in _stateful(tree).items()}
    return jtu.tree_map(lambda x: strong(jnp.array(x)), states) or None


def in_force(
    tree: PyTree, step: ArrayLike, states: Mapping[str, State] | None, extra: Mapping[str, Any] | None = None
) -> PyTree:
    """The tree with every schedule in it, stateful or not, replaced by its number.

    Args:
        tree: a transform.
        step: the number of steps done.
        states: the states of the stateful schedules.
        extra: the extra arguments of this step; None where no step is made.
    """
    found = _stateful(tree)
    numbers = {}
    for name, schedule in found.items():
        if name not in (states or {}):
            raise ValueError(
                f"`{type(tree).__name__}({name}=...)` is a stateful schedule, and the state holds nothing for it: it "
                f"came after `init` was called. Call `init` of the transform that has it."
            )
        if extra is not None:
            check_extra(f"`{type(schedule).__name__}`, the schedule of `{name}`,", extra_arguments(schedule), extra)
        numbers[name] = _as_default_float(resolve(schedule, step)((states or {})[name], **(extra or {})))
    return resolve(_replaced(tree, numbers) if found else tree, step)


def advance(
    tree: PyTree, step: ArrayLike, states: Mapping[str, State] | None, extra: Mapping[str, Any]
) -> dict[str, State] | None:
    """The states of the stateful schedules in the tree after a step, in the dtypes that they had."""
    new = {}
    for name, schedule in _stateful(tree).items():
        old = (states or {})[name]
        state = resolve(schedule, step).update(old, **extra)
        shapes = [jtu.tree_map(jnp.shape, x) for x in (old, state)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`{type(schedule).__name__}.update` must return a state of the structure and the shapes that it was "
                f"given, {shapes[0]}; it returned {shapes[1]}."
            )
        new[name] = jtu.tree_map(lambda x, y: jnp.asarray(x).astype(y.dtype), state, old)
    return new or None


def _stops_for_states(tree: PyTree) -> Callable[[Any], bool]:
    def stops(x: Any) -> bool:
        if isinstance(x, AbstractTransform) and x.clock in ("keeper", "pace"):
            return x is not tree or x.clock == "pace"
        return is_stateful(x)

    return stops


def _stateful(tree: PyTree) -> dict[str, AbstractStatefulSchedule]:
    """The stateful schedules in the tree, by dotted path."""
    found = jtu.tree_leaves_with_path(tree, is_leaf=_stops_for_states(tree))
    return {_name(path): x for path, x in found if is_stateful(x)}


def _replaced(tree: PyTree, numbers: Mapping[str, Any]) -> PyTree:
    def number_now(path: Any, x: Any) -> Any:
        return numbers[_name(path)] if is_stateful(x) else x

    return jtu.tree_map_with_path(number_now, tree, is_leaf=_stops_for_states(tree))


def _name(path: tuple[Any, ...]) -> str:
    return JoinedNames(join(key_names(path)))
