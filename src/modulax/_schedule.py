"""Numbers and schedules: what a hyperparameter may be."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree, Real

from ._checks import POSITIVE, Requirement, check_extra
from ._hyperparameters import ARRAY_TYPES, AbstractHyperparameters, as_scalar
from ._numerics import default_float
from ._types import ScheduleFunction, State
from .tree._math import strong
from .tree._paths import JoinedNames, join, key_names


class AbstractSchedule(AbstractHyperparameters):
    """A map from a step count to a number, which may stand in any numeric field of a transform.

    Write `__call__(step)`. The numbers of a schedule are fields made with `modulax.number()`, so that it can be swept,
    changed and differentiated like everything else.
    """

    @abc.abstractmethod
    def __call__(self, step: ArrayLike) -> Any:
        """The number at a step: a scalar, traced where an optimizer calls.

        It is an integer, or a float inside of `over` and `Join`.
        """

    def over(self, total_steps: Any) -> "AbstractSchedule":
        """This schedule with every duration read as a fraction of a run.

            schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=0.1, decay_steps=1.0).over(10_000)

        Args:
            total_steps: the steps of the whole run, a number like all others: it can be swept and differentiated.
        """
        return Stretched(self, total_steps)

    def plot(self, steps: Any, ax: Any = None, **kwargs: Any) -> Any:
        """Draws the curve with matplotlib and returns the axes. Needs `pip install "modulax[plot]"`.

        Args:
            steps: how many steps to draw, or an array of steps.
            ax: the axes to draw on; the current ones of pyplot if not given.
            **kwargs: what matplotlib's `Axes.plot` takes, such as `label=`.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            message = f'`{type(self).__name__}.plot` draws with matplotlib: `pip install "modulax[plot]"`.'
            raise ImportError(message) from error
        steps = np.asarray(steps)
        steps = steps if steps.ndim else np.arange(steps)
        ax = plt.gca() if ax is None else ax
        ax.plot(steps, np.asarray(jax.vmap(self)(jnp.asarray(steps))), **kwargs)
        ax.set_xlabel("step")
        return ax


class WrappedSchedule(AbstractSchedule):
    """A plain function of the step, such as a lambda or one of optax's schedules, as a schedule.

    A function that is given where a number is expected is wrapped by itself. What it computes with is part of the
    program: to change or sweep a number inside it, write an `AbstractSchedule`.

    Args:
        function: maps a step to a number.
    """

    function: ScheduleFunction = eqx.field(static=True)

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """What the function returns, in JAX's default float dtype."""
        return jnp.asarray(self.function(step)).astype(default_float())


class AbstractStatefulSchedule(AbstractHyperparameters):
    """A number that depends on what happened so far, such as on the losses, and not on the step alone.

    Write `init()`, `update(state, **extra)` and `__call__(state, **extra)`. It may stand in the numeric fields of every
    optimizer, and of what is inside of `Scheduled` or `Injected`; these keep its state in theirs. At each step they ask
    for the number and then for the new state, and both methods see the extra arguments of that step, such as the loss.
    Before there are any, `__call__(state)` is asked without.

    A schedule that stands in one of its own fields arrives there as a number.
    """

    needs_extra: ClassVar[tuple[str, ...]] = ()
    """The extra arguments without which it cannot do its work, such as `value`, the loss."""

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step: any tree of arrays."""

    @abc.abstractmethod
    def update(self, state: State, **extra: Any) -> State:
        """The state after a step, with the structure, shapes and dtypes that it had."""

    @abc.abstractmethod
    def __call__(self, state: State, **extra: Any) -> Any:
        """The number at a step, given the state before it."""


class WrappedStatefulSchedule(AbstractStatefulSchedule):
    """Another library's stateful schedule, such as optax's: an object with `init`, `update` and `__call__`.

    One that is given where a number is expected is wrapped by itself. What it computes with is part of the program: to
    change or sweep a number inside it, write an `AbstractStatefulSchedule`.

    Args:
        schedule: the object.
    """

    schedule: Any = eqx.field(static=True)

    def init(self) -> State:
        """What the object returns."""
        return self.schedule.init()

    def update(self, state: State, **extra: Any) -> State:
        """What the object returns."""
        return self.schedule.update(state, **extra)

    def __call__(self, state: State, **extra: Any) -> Any:
        """What the object returns."""
        return self.schedule(state, **extra)


if TYPE_CHECKING:
    # A plain union, because pyright rejects arithmetic (`-self.learning_rate`) on jaxtyping's scalar types.
    Number: TypeAlias = float | int | Array
    # A number, a schedule or a plain function of the step: the field's converter decides.
    Hyperparameter: TypeAlias = Any
else:
    Number: TypeAlias = Real[ArrayLike, ""] | AbstractSchedule | AbstractStatefulSchedule
    Hyperparameter: TypeAlias = Number


def is_schedule(x: Any) -> bool:
    """Whether `x` is a schedule, stateful or not, for `is_leaf=`."""
    return isinstance(x, (AbstractSchedule, AbstractStatefulSchedule))


def has_schedule(tree: PyTree) -> bool:
    """Whether a schedule stands anywhere in the tree."""
    return any(map(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule)))


def has_stateful_schedule(tree: PyTree) -> bool:
    """Whether one that has a state does."""
    return any(map(_is_stateful, jtu.tree_leaves(tree, is_leaf=_is_stateful)))


def _is_stateful(x: Any) -> bool:
    return isinstance(x, AbstractStatefulSchedule)


def resolve(tree: PyTree, step: ArrayLike) -> PyTree:
    """The tree with every schedule of the step in it replaced by its number at `step`; stateful ones are left alone.

    What lies deeper in the tree and counts its own steps (`counts_steps`) is left alone too: inside of `MultiSteps` an
    optimizer makes fewer steps than outside.
    """

    def stops(x: Any) -> bool:
        if isinstance(x, AbstractHyperparameters) and x.counts_steps:
            return x is not tree or x.keeps_own_pace
        return is_schedule(x) and not (x is tree and _is_stateful(x))

    def number_now(x: Any) -> Any:
        return _as_default_float(x(step)) if isinstance(x, AbstractSchedule) else x

    return jtu.tree_map(number_now, tree, is_leaf=stops)


def _as_default_float(x: Any) -> Any:
    return jnp.asarray(x).astype(default_float())


# --- Stateful schedules: `init`, `update` and `at` of what keeps their states -----------------------


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
            check_extra(f"`{type(schedule).__name__}`, the schedule of `{name}`,", schedule.needs_extra, extra)
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
        if isinstance(x, AbstractHyperparameters) and (x.keeps_schedules or x.keeps_own_pace):
            return x is not tree or x.keeps_own_pace
        return _is_stateful(x)

    return stops


def _stateful(tree: PyTree) -> dict[str, AbstractStatefulSchedule]:
    """The stateful schedules in the tree, by dotted path."""
    found = jtu.tree_leaves_with_path(tree, is_leaf=_stops_for_states(tree))
    return {_name(path): x for path, x in found if _is_stateful(x)}


def _replaced(tree: PyTree, numbers: Mapping[str, Any]) -> PyTree:
    def number_now(path: Any, x: Any) -> Any:
        return numbers[_name(path)] if _is_stateful(x) else x

    return jtu.tree_map_with_path(number_now, tree, is_leaf=_stops_for_states(tree))


def _name(path: tuple[Any, ...]) -> str:
    return JoinedNames(join(key_names(path)))


# --- Fields -----------------------------------------------------------------------------------------


def as_number(x: Any) -> Any:
    """A hyperparameter as it is stored: a scalar, a schedule, or None."""
    if callable(x) and not is_schedule(x) and not isinstance(x, ARRAY_TYPES):
        is_stateful = callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))
        return WrappedStatefulSchedule(x) if is_stateful else WrappedSchedule(x)
    return as_scalar(x)


def number(default: Any = dataclasses.MISSING, *, needs: Requirement | None = None, optional: bool = False) -> Any:
    """A field that holds a hyperparameter: a number, or a schedule.

    Whatever is given becomes a leaf: a Python number a NumPy scalar of JAX's default float dtype, which starts no
    backend, has no weak type and survives donation; a plain function a `WrappedSchedule`. JAX arrays and tracers are
    kept as they are.

    Args:
        default: the field's default, if it has one.
        needs: what the number must be, where a wrong one is certain to be a mistake.
        optional: whether None is a value too, for a part that is left out.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"number": True, "optional": optional, "needs": needs}
    return eqx.field(converter=as_number, metadata=metadata, **given)


def numbers(
    default: Any = dataclasses.MISSING,
    *,
    needs: Requirement | None = None,
    arranged: Callable[[Any], tuple[Any, ...]] | None = None,
) -> Any:
    """A field that holds a tuple of hyperparameters, each a number or a schedule.

    Args:
        default: the field's default, if it has one. There must be as many numbers as it has.
        needs: what each of the numbers must be.
        arranged: brings what is given into the form that is stored, a tuple of numbers or of tuples of them, and
            refuses what has no such form. There may then be more or fewer numbers than in the default.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"numbers": True, "optional": False, "needs": needs, "arranged": arranged is not None}
    converter = _as_numbers if arranged is None else lambda xs: _as_numbers(arranged(xs))
    return eqx.field(converter=converter, metadata=metadata, **given)


def _as_numbers(xs: Any) -> Any:
    if not isinstance(xs, Iterable):
        return xs
    return tuple(_as_numbers(x) if isinstance(x, tuple) else as_number(x) for x in xs)


def choice(options: tuple[str, ...], default: str, *, kw_only: bool = True) -> Any:
    """A field that holds one of some words, and refuses others."""
    return eqx.field(static=True, default=default, kw_only=kw_only, metadata={"options": options})


def followed() -> Any:
    """A field that says whom a class follows where the two differ: the paper, or optax."""
    return choice(("paper", "optax"), "paper")


class Stretched(AbstractSchedule):
    r"""A schedule whose durations are fractions of a run: what `schedule.over(total_steps)` returns.

    $$
    f(t) = g(t / N)
    $$

    Args:
        schedule: the curve $g$, which begins at 0 and at whose 1 the run is over.
        total_steps: the steps $N$ of the whole run.
    """

    schedule: AbstractSchedule
    total_steps: Number = number(needs=POSITIVE)

    def __call__(self, step: ArrayLike) -> Any:
        """The number of the schedule at this fraction of the run."""
        dtype = default_float()
        return self.schedule(jnp.asarray(step).astype(dtype) / jnp.asarray(self.total_steps).astype(dtype))
