"""Schedules: functions of the step count, or of a state, that give the value of a hyperparameter."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._support.arithmetic import default_float
from .._support.checks import POSITIVE
from .._support.tracing import call_user
from .._support.types import ScheduleFunction, State
from .hyperparameters import ARRAY_TYPES, AbstractHyperparameters, as_scalar, numeric_field


class AbstractSchedule(AbstractHyperparameters):
    """A function of the step count that gives the value of a hyperparameter, for any numeric field of a transform.

    Implement `__call__(step)`. Declare the hyperparameters of the schedule with `modulax.number()`, so that they can be
    swept, replaced and differentiated like those of a transform.
    """

    @abc.abstractmethod
    def __call__(self, step: ArrayLike) -> Any:
        """Return the value at a step.

        Args:
            step: a scalar; traced when an optimizer calls the schedule. It is an integer, or a float inside `over` and
                `Join`.
        """

    def __hash__(self) -> int:
        # By value, like `==`, for `jax.jit(schedule)`. Equinox would hash the leaves, and NumPy arrays don't hash.
        leaves, treedef = jtu.tree_flatten(self)
        return hash((treedef, *(np.asarray(x).tobytes() if isinstance(x, ARRAY_TYPES) else x for x in leaves)))

    def over(self, total_steps: Any) -> "AbstractSchedule":
        """Stretch a schedule whose durations are fractions of a run to a number of steps.

            schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=0.1, decay_steps=1.0).over(10_000)

        Args:
            total_steps: number of steps of the whole run, a hyperparameter that can be swept and differentiated.
        """
        return Stretched(self, total_steps)

    def plot(self, steps: Any, ax: Any = None, **kwargs: Any) -> Any:
        """Plot the schedule with matplotlib and return the axes. Requires `pip install "modulax[plot]"`.

        Args:
            steps: number of steps to plot, or an array of steps.
            ax: axes to plot on; by default the current axes of pyplot.
            **kwargs: keyword arguments of matplotlib's `Axes.plot`, such as `label=`.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            message = f'`{type(self).__name__}.plot` requires matplotlib: `pip install "modulax[plot]"`.'
            raise ImportError(message) from error
        steps = np.asarray(steps)
        steps = steps if steps.ndim else np.arange(steps)
        ax = plt.gca() if ax is None else ax
        ax.plot(steps, np.asarray(jax.vmap(self)(jnp.asarray(steps))), **kwargs)
        ax.set_xlabel("step")
        return ax


class WrappedSchedule(AbstractSchedule):
    """A plain function of the step, such as a lambda or an optax schedule, as a schedule.

    A function that is given where a number is expected is wrapped automatically. It is traced once, so that the
    constants in it are part of the compiled program: to change, sweep or differentiate them, write an
    `AbstractSchedule`.

    Args:
        function: function of the step that returns the value.
    """

    function: ScheduleFunction = eqx.field(static=True)

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """Return the value of the function at a step, in JAX's default float dtype."""
        return jnp.asarray(call_user(self.function, step)).astype(default_float())


class AbstractStatefulSchedule(AbstractHyperparameters):
    """A schedule with a state: its value depends on the past, such as previous losses, and not on the step alone.

    Implement `init()`, `update(state, **extra)` and `__call__(state, **extra)`. Use it in any numeric field of an
    optimizer, or of a transform inside `Scheduled` or `Injected`, which keep its state in theirs. At each step they
    call the schedule for the value and then `update` for the new state, both with the extra arguments of that step,
    such as the loss. When a value is needed outside a step, `__call__(state)` is called without extra arguments.

    If a hyperparameter of the schedule is a schedule of the step, its value at the step takes its place.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The extra arguments that the schedule requires, such as `"value"`, the loss."""

    @abc.abstractmethod
    def init(self) -> State:
        """Return the initial state: any tree of arrays."""

    @abc.abstractmethod
    def update(self, state: State, **extra: Any) -> State:
        """Return the state after a step, with the structure, shapes and dtypes of the previous one.

        Args:
            state: the state before the step.
            extra: the extra arguments of the step, such as the loss, `value=...`.
        """

    @abc.abstractmethod
    def __call__(self, state: State, **extra: Any) -> Any:
        """Return the value at a step.

        Args:
            state: the state before the step.
            extra: the extra arguments of the step, such as the loss, `value=...`.
        """


class WrappedStatefulSchedule(AbstractStatefulSchedule):
    """A stateful schedule of another library, such as optax: an object with `init`, `update` and `__call__`.

    Such an object is wrapped automatically if it is given where a number is expected. The constants in it are part of
    the compiled program: to change, sweep or differentiate them, write an `AbstractStatefulSchedule`.

    Args:
        schedule: the object.
    """

    schedule: Any = eqx.field(static=True)

    def init(self) -> State:
        """Return the initial state of the wrapped schedule."""
        return call_user(self.schedule.init)

    def update(self, state: State, **extra: Any) -> State:
        """Return the state of the wrapped schedule after a step."""
        return call_user(self.schedule.update, state, **extra)

    def __call__(self, state: State, **extra: Any) -> Any:
        """Return the value of the wrapped schedule."""
        return call_user(self.schedule, state, **extra)


def is_schedule(x: Any) -> bool:
    """Whether `x` is a schedule, stateful or not, for `is_leaf=`."""
    return isinstance(x, (AbstractSchedule, AbstractStatefulSchedule))


def has_schedule(tree: PyTree) -> bool:
    """Whether there is a schedule, stateful or not, anywhere in the tree."""
    return any(map(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule)))


def has_stateful_schedule(tree: PyTree) -> bool:
    """Whether there is a stateful schedule anywhere in the tree."""
    return any(map(is_stateful, jtu.tree_leaves(tree, is_leaf=is_stateful)))


def is_stateful(x: Any) -> bool:
    return isinstance(x, AbstractStatefulSchedule)


def as_number(x: Any) -> Any:
    """Convert a hyperparameter to its stored form: a scalar, a schedule, or None."""
    if callable(x) and not is_schedule(x) and not isinstance(x, ARRAY_TYPES):
        is_stateful = callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))
        return WrappedStatefulSchedule(x) if is_stateful else WrappedSchedule(x)
    return as_scalar(x)


class Stretched(AbstractSchedule):
    r"""A schedule whose durations are fractions of a run, stretched to a number of steps by `schedule.over(...)`.

    $$
    f(t) = g(t / N)
    $$

    Args:
        schedule: schedule $g$ of the fraction of the run: the run begins at 0 and ends at 1.
        total_steps: number $N$ of steps of the whole run.
    """

    schedule: AbstractSchedule
    total_steps: Any = numeric_field(as_number, needs=POSITIVE)  # not `number()`, whose module imports this one

    def __call__(self, step: ArrayLike) -> Any:
        """Return the value of the schedule at this fraction of the run."""
        dtype = default_float()
        return self.schedule(jnp.asarray(step).astype(dtype) / jnp.asarray(self.total_steps).astype(dtype))
