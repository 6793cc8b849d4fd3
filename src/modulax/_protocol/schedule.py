"""What a schedule is: a map from a step, or from what happened so far, to a number."""

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
from .._support.types import ScheduleFunction, State
from .hyperparameters import ARRAY_TYPES, AbstractHyperparameters, as_scalar, numeric_field


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

    needs: ClassVar[tuple[str, ...]] = ()
    """The extra arguments of `update` that it cannot do without, such as `"value"`, the loss."""

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


def is_schedule(x: Any) -> bool:
    """Whether `x` is a schedule, stateful or not, for `is_leaf=`."""
    return isinstance(x, (AbstractSchedule, AbstractStatefulSchedule))


def has_schedule(tree: PyTree) -> bool:
    """Whether a schedule stands anywhere in the tree."""
    return any(map(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule)))


def has_stateful_schedule(tree: PyTree) -> bool:
    """Whether one that has a state does."""
    return any(map(is_stateful, jtu.tree_leaves(tree, is_leaf=is_stateful)))


def is_stateful(x: Any) -> bool:
    return isinstance(x, AbstractStatefulSchedule)


def as_number(x: Any) -> Any:
    """A hyperparameter as it is stored: a scalar, a schedule, or None."""
    if callable(x) and not is_schedule(x) and not isinstance(x, ARRAY_TYPES):
        is_stateful = callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))
        return WrappedStatefulSchedule(x) if is_stateful else WrappedSchedule(x)
    return as_scalar(x)


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
    total_steps: Any = numeric_field(as_number, needs=POSITIVE)  # `number()`, which stands above this file

    def __call__(self, step: ArrayLike) -> Any:
        """The number of the schedule at this fraction of the run."""
        dtype = default_float()
        return self.schedule(jnp.asarray(step).astype(dtype) / jnp.asarray(self.total_steps).astype(dtype))
