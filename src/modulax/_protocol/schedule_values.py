"""The current values of schedules: every schedule in a transform is replaced by its value at a step.

`resolve` does this for schedules of the step, which need the step count only. It leaves alone any transform inside that
counts its own steps (see `AbstractTransform.clock`): inside `MultiSteps`, an optimizer makes fewer steps than outside.

Stateful schedules need a state, which a transform with `clock = "keeper"` (every optimizer, `Scheduled`, `Injected`)
keeps by the dotted path of the field that holds the schedule. It calls three functions: `schedule_states` in `init`;
`with_current_values`, which is `resolve` for both kinds of schedules, before the inner update; and `advance` after it.
The value at a step is computed from the state before that step, as in optax. For `metrics`, it is that of the last one.

The functions at the end are of the values over a run: their range, and their peak.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PyTree

from .._support.arithmetic import default_float, no_steps, rank_of
from .._support.checks import check_extra
from .._support.tracing import runs_as_python
from .._support.types import State
from ..tree._math import strong
from ..tree._paths import JoinedNames, join, key_names
from .schedule import AbstractSchedule, AbstractStatefulSchedule, has_stateful_schedule, is_schedule, is_stateful
from .transform import AbstractTransform, Clock, extra_arguments

_STEPS = 2 ** np.arange(0, 24, 1 / 64)  # close enough to find a peak within one percent
_MOST_PAIRED = 32


class _Reading(NamedTuple):
    """Which values are read.

    Args:
        steps_back: 1 for their values at the step that led to a state. A stateful schedule, and arithmetic with one,
            still has its value at the next step: its state before the last one is no longer there.
        with_factors: whether learning rates are those of the step: multiplied by the optimizer's own warm-up.
        steps_of_round: the number of steps after which a step count was reset to zero. So the last step before it is
            the last one of a round, also for a fresh state, which looks the same.
    """

    steps_back: int = 0
    with_factors: bool = False
    steps_of_round: Any = 1


_AT_NEXT_STEP = _Reading()
_reading = contextvars.ContextVar("_reading", default=_AT_NEXT_STEP)


@contextlib.contextmanager
def reading(**changes: Any) -> Iterator[None]:
    """In this block, schedules are replaced by other values than those of the next step, as `_Reading` has them."""
    token = _reading.set(_reading.get()._replace(**changes))
    try:
        yield
    finally:
        _reading.reset(token)


def has_factors() -> bool:
    """Whether learning rates are asked for with the optimizer's own warm-up."""
    return _reading.get().with_factors


def resolve(tree: PyTree, step: ArrayLike) -> PyTree:
    """Replace every schedule of the step by its value at `step`.

    Stateful schedules and transforms inside that count their own steps are left unchanged.

    Args:
        tree: a transform, a schedule, or a tree of them.
        step: the number of steps done.
    """

    def stops(x: Any) -> bool:
        if isinstance(x, AbstractTransform) and x.clock != "caller":
            return x is not tree or x.clock == "pace"
        return is_schedule(x) and not (x is tree and is_stateful(x))

    def number_now(x: Any) -> Any:
        if not isinstance(x, AbstractSchedule):
            return x
        found = jtu.tree_leaves((x, step, rounds), is_leaf=_runs_as_python)
        is_plain = any(isinstance(leaf, Tracer) or _runs_as_python(leaf) for leaf in found)
        return (_value if is_plain else _compiled_value)(x, step, back, rounds)

    back, _, rounds = _reading.get()
    return jtu.tree_map(number_now, tree, is_leaf=stops)


def at_start(number: Any) -> Any:
    """Return the value of a hyperparameter before the first step, for an initial state."""
    return resolve(number, no_steps())


def _value(schedule: AbstractSchedule, step: ArrayLike, back: int, rounds: ArrayLike) -> Any:
    if back:  # before the first step, it is the value of that one
        step = jnp.maximum(jnp.where(jnp.asarray(step) == 0, rounds, step) - back, 0)
    return _as_default_float(schedule(step))


# Outside a program, one for each schedule in place of one for each operation.
_compiled_value = jax.jit(_value, static_argnums=2)


def _runs_as_python(x: Any) -> bool:
    """Whether this is a schedule that is called at every step, as a function of `modulax.compat` is."""
    return runs_as_python(type(x))


def _as_default_float(x: Any) -> Any:
    return jnp.asarray(x).astype(default_float())


def schedule_states(tree: PyTree) -> dict[str, State] | None:
    """Return the initial states of the stateful schedules in the tree, by dotted path; None if there are none.

    Transforms inside that keep the states of their schedules themselves (`clock = "keeper"`) are left out.
    """
    # Copies: a hyperparameter of the schedule that is also an array of its state would be deleted with a donated state.
    states = {name: resolve(schedule, 0).init() for name, schedule in _stateful(tree).items()}
    return jtu.tree_map(lambda x: strong(jnp.array(x)), states) or None


def with_current_values(
    tree: PyTree, step: ArrayLike, states: Mapping[str, State] | None, extra: Mapping[str, Any] | None = None
) -> PyTree:
    """Replace every schedule, stateful or not, by its current value.

    Args:
        tree: a transform.
        step: the number of steps done.
        states: the states of the stateful schedules.
        extra: the extra arguments of this step; None if the values are only listed, outside a step.
    """
    if isinstance(tree, AbstractTransform):
        tree = tree._completed()
    states, numbers = states or {}, {}
    for name, schedule in _stateful(tree).items():
        if name not in states:
            raise ValueError(
                f"`{type(tree).__name__}({name}=...)` is a stateful schedule, and the optimizer state holds no "
                f"state for it: the schedule was set after `init`. Call `init` again on the transform that has the "
                f"schedule."
            )
        # Outside a step there are no extra arguments, and `__call__` must do without them.
        if extra is not None:
            check_extra(f"`{type(schedule).__name__}`, the schedule of `{name}`,", extra_arguments(schedule), extra)
        with reading(steps_back=0):  # of which the state is
            numbers[name] = _as_default_float(resolve(schedule, step)(states[name], **(extra or {})))
    if numbers:
        stops = _stops_for_states(tree)
        known = jtu.tree_map_with_path(lambda path, x: numbers.get(_name(path), x), tree, is_leaf=stops)

        def of_one_step(x: Any, known: Any) -> Any:
            # The arithmetic around a stateful schedule has its value at the same step.
            if not is_schedule(x) or not has_stateful_schedule(x):
                return known
            with reading(steps_back=0):
                return resolve(known, step)

        tree = jtu.tree_map(of_one_step, tree, known, is_leaf=lambda x: is_schedule(x) or stops(x))
    return resolve(tree, step)


def advance(
    tree: PyTree, step: ArrayLike, states: Mapping[str, State] | None, extra: Mapping[str, Any]
) -> dict[str, State] | None:
    """Return the states of the stateful schedules after a step, each in its previous dtype."""
    new = {}
    for name, schedule in _stateful(tree).items():
        old = (states or {})[name]
        state = resolve(schedule, step).update(old, **extra)
        shapes = [jtu.tree_map(jnp.shape, x) for x in (old, state)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`{type(schedule).__name__}.update` must return a state with the structure and the shapes of the one "
                f"it was given, {shapes[0]}; it returned {shapes[1]}."
            )
        new[name] = jtu.tree_map(functools.partial(_as_before, type(schedule).__name__), state, old)
    return new or None


def _as_before(owner: str, new: Any, old: Any) -> Any:
    """The new value of a state in its previous dtype, which must not truncate it (0.3 in an integer)."""
    new = jnp.asarray(new)
    if rank_of(new.dtype) > rank_of(old.dtype):
        raise ValueError(
            f"`{owner}.update` returned {new.dtype} for a value of the state that is {old.dtype} in `init`. A state "
            f"keeps its dtypes: begin with one that holds all values, such as `jnp.zeros(())` for a float."
        )
    return new.astype(old.dtype)


def _stops_for_states(tree: PyTree) -> Callable[[Any], bool]:
    def stops(x: Any) -> bool:
        if isinstance(x, AbstractTransform) and x.clock in ("keeper", "pace"):
            return x is not tree or x.clock == "pace"
        return is_stateful(x)

    return stops


def _stateful(tree: PyTree) -> dict[str, AbstractStatefulSchedule]:
    """The stateful schedules in the tree, by dotted path."""
    leaves = jtu.tree_leaves_with_path(tree, is_leaf=_stops_for_states(tree))
    return {_name(path): x for path, x in leaves if is_stateful(x)}


def _name(path: tuple[Any, ...]) -> str:
    # Checkpoints and `tree.get` read this one key as the names of the path.
    return JoinedNames(join(key_names(path)))


class AbstractCounted(AbstractTransform):
    """A transform with a step count in its state, the field `count`, at which its schedules are evaluated."""

    clock: ClassVar[Clock] = "steps"

    def at(self, state: Any) -> Self:
        """Return the transform with every schedule replaced by its value at the next step.

        Args:
            state: the state of this transform.
        """
        return resolve(self, state.count)


def known_values(rate: Any) -> np.ndarray | None:
    """The values of a number, or of a schedule at steps of all magnitudes, in order; None if they are not known here.

    The value of an array on a device is unknown, and so are those of a function that takes only integers.
    """
    if not isinstance(rate, AbstractSchedule):
        # An array on a device is not read, because `init` would wait for it.
        is_known = isinstance(rate, (float, int, np.generic, np.ndarray)) and np.ndim(rate) == 0
        return np.asarray(rate, np.float64) if is_known else None
    try:
        steps, values = map(np.asarray, _sampled(rate))
    except Exception:  # a user's function may raise anything for an array
        return None
    # Sorted here, because in the program the number of steps is that of all schedules of a class.
    return values[np.unique(steps, return_index=True)[1]]


def largest(rate: Any) -> float | None:
    """Return the largest magnitude of a learning rate over the run; None if it is not known on the host.

    Args:
        rate: a number or a schedule.
    """
    values = known_values(rate)
    if values is None:
        return None
    peak = float(np.max(np.abs(values)))
    return float(f"{peak:.3g}") if values.ndim else peak  # that of a schedule is sampled, so not exact


def at_all_magnitudes(schedule: AbstractSchedule) -> Array:
    """The values of a schedule at steps of all magnitudes, also in a program."""
    return _sampled(schedule)[1]


@jax.jit
def _sampled(schedule: AbstractSchedule) -> tuple[Array, Array]:
    """Steps, in no order, and the values at them."""
    steps = _steps(schedule)
    return steps, jax.vmap(schedule)(steps)


def _steps(schedule: AbstractSchedule) -> Array:
    """Steps of all magnitudes, and those beside the steps at which a schedule may jump.

    These are numbers of the schedule, and for schedules in a `Join` sums of two.
    """
    found = [jnp.ravel(x).astype(default_float()) for x in jtu.tree_leaves(schedule) if jnp.isrealobj(x)]
    numbers = jnp.concatenate(found) if found else jnp.zeros(0, default_float())
    if numbers.size <= _MOST_PAIRED:
        numbers = jnp.concatenate([numbers, jnp.ravel(numbers[:, None] + numbers[None, :])])
    elif numbers.size > len(_STEPS):  # a table of values
        numbers = numbers[:0]
    beside = jnp.concatenate([jnp.floor(numbers) + k for k in (-1, 0, 1)])
    # A number that is NaN is at no step.
    return jnp.concatenate([jnp.asarray([0.0, *_STEPS], default_float()), jnp.nan_to_num(beside).clip(0, _STEPS[-1])])
