"""Schedules: functions of the step count, or of a state, that give the value of a hyperparameter."""

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree
from typing_extensions import TypeIs

from .._support.arithmetic import default_float
from .._support.checks import POSITIVE, Requirement, listing, require
from .._support.flax_nodes import is_variable
from .._support.module import with_fields
from .._support.packages import imported
from .._support.printing import format_value
from .._support.tracing import call_user, is_tracing
from .._support.types import ARRAY_TYPES, ScheduleFunction, State
from .hyperparameters import AbstractHyperparameters, as_scalar

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_NOT_ZERO = Requirement(lambda x: x != 0, "is a divisor: it must not be zero")


class AbstractArithmetic(AbstractHyperparameters):
    """Arithmetic on schedules, stateful or not: `-s`, `2 * s`, `s / x`, `s + t`, `s.clip(low, high)`."""

    _listed: ClassVar[tuple[str, ...]] = (
        *("addresses", "clip", "hyperparameters", "init", "over", "plot", "replace", "update"),
    )

    __array_ufunc__: ClassVar[None] = None  # NumPy numbers leave `number * schedule` to the schedule

    @abc.abstractmethod
    def __call__(self, *args: Any, **extra: Any) -> Any:
        """Return the value at a step, given the step or a state."""

    def __getitem__(self, step: Any) -> Any:
        """Raise an error that says how to read a value."""
        raise TypeError(f"`{type(self).__name__}` is a function of the step: write `schedule({step!r})`.")

    @classmethod
    def _inside_is_read_by(cls, name: str) -> tuple[str, str]:
        return "schedule", super()._inside_is_read_by(name)[1]

    def _title(self) -> str:
        """Return the name of a schedule in a table: its class, or an expression with the names of classes."""
        return type(self).__name__

    def _why_not_a_number(self) -> str | None:
        """Return why this schedule cannot be the value of a hyperparameter: None, except for a wrapped function."""

    def clip(self, low: Any = None, high: Any = None) -> "AbstractSchedule":
        """Return the schedule with its values limited to an interval.

            schedules.InverseSqrt(1e-3, 1000).clip(low=1e-5)

        Args:
            low: lower bound, a number or a schedule; None for no bound.
            high: upper bound, a number or a schedule; None for no bound.

        Raises:
            ValueError: if there is no bound.
        """
        return Clipped(self, low, high)

    def __neg__(self) -> "AbstractSchedule":
        return Expression("-", None, self)

    def __pos__(self) -> "AbstractArithmetic":
        return self

    def __add__(self, other: Any) -> "AbstractSchedule":
        return _expression("+", self, other)

    def __radd__(self, other: Any) -> "AbstractSchedule":
        return _expression("+", other, self)

    def __sub__(self, other: Any) -> "AbstractSchedule":
        return _expression("-", self, other)

    def __rsub__(self, other: Any) -> "AbstractSchedule":
        return _expression("-", other, self)

    def __mul__(self, other: Any) -> "AbstractSchedule":
        return _expression("*", self, other)

    def __rmul__(self, other: Any) -> "AbstractSchedule":
        return _expression("*", other, self)

    def __truediv__(self, other: Any) -> "AbstractSchedule":
        return _expression("/", self, other)

    def __rtruediv__(self, other: Any) -> "AbstractSchedule":
        return _expression("/", other, self)


class AbstractSchedule(AbstractArithmetic):
    """A function of the step count that gives the value of a hyperparameter, for any numeric field of a transform.

    Implement `__call__(step)`. Declare the hyperparameters of the schedule with `modulax.number()`, so that they can be
    swept, replaced and differentiated like those of a transform.

    Schedules can be added, subtracted, multiplied, divided, negated and clipped, with each other, with numbers and with
    plain functions of the step. The result is a schedule (`schedules.Expression`, `schedules.Clipped`):

        rate = schedules.WarmupCosineDecay(0.0, 3e-4, 100, 1000)
        optimizer = AdamW(rate, weight_decay=0.1 * rate / 3e-4)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls) and not getattr(cls.__call__, "__isabstractmethod__", False):
            cls.__call__ = _of_numbers(cls.__call__)

    @abc.abstractmethod
    def __call__(self, step: ArrayLike) -> Any:
        """Return the value at a step.

        A hyperparameter that is a schedule itself is its value at the same step here.

        Args:
            step: a scalar; traced when an optimizer calls the schedule. It is an integer, or a float inside `over` and
                `Join`.
        """

    def __setitem__(self, key: Any, value: Any) -> None:  # as to a number in `modulax.nnx.Optimizer`, a variable
        paths = [path for path, _ in jtu.tree_leaves_with_path(self, is_leaf=is_variable)]
        raise TypeError(
            f"`{type(self).__name__}` is a schedule, which can't be assigned to like an array. In "
            f"`modulax.nnx.Optimizer`, assign to one of its numbers: "
            f"{listing(f'{jtu.keystr(path)}[...]' for path in paths)}. Elsewhere, write `optimizer.replace(...)`."
        )

    def over(self, total_steps: Any) -> "AbstractSchedule":
        """Stretch a schedule whose durations are fractions of a run to a number of steps.

            schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=0.1, decay_steps=1.0).over(10_000)

        Args:
            total_steps: number of steps of the whole run, a hyperparameter that can be swept and differentiated.

        Raises:
            ValueError: if the schedule is stretched to a number of steps already.
        """
        for x in jtu.tree_leaves(self, is_leaf=lambda x: isinstance(x, Stretched)):
            # A duration up to 1 is a fraction of the run, also for a part of a schedule.
            if isinstance(x, Stretched) and isinstance(x.total_steps, np.ndarray) and x.total_steps > 1:
                raise ValueError(
                    f"`over`: `{self._title()}` already has its durations in steps, of a run of {x.total_steps:.7g}. "
                    f"Change that number: `schedule.replace(total_steps={format_value(total_steps)})`."
                )
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
        plt = imported("matplotlib.pyplot", f"{type(self).__name__}.plot", "plot")
        steps = np.asarray(steps)
        steps = steps if steps.ndim else np.arange(steps)
        ax = plt.gca() if ax is None else ax
        ax.plot(steps, np.asarray(jax.vmap(self)(jnp.asarray(steps))), **kwargs)
        ax.set_xlabel("step")
        return ax


def numbers_at(schedule: Any, step: ArrayLike) -> Any:
    """Return a schedule with the value at a step in the place of every schedule in a numeric field."""
    values = {}
    for field in dataclasses.fields(schedule):
        if field.metadata.keys() & {"number", "numbers"} and has_schedule(value := getattr(schedule, field.name)):
            values[field.name] = jtu.tree_map(lambda x: _value_at(x, step), value, is_leaf=is_schedule)
    return with_fields(schedule, **values) if values else schedule


def _of_numbers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make the `__call__` of a schedule see numbers in the place of the schedules in its fields."""

    @functools.wraps(call)
    def called(self: Any, step: ArrayLike) -> Any:
        return call(numbers_at(self, step), step)

    return called


class WrappedSchedule(AbstractSchedule):
    """A plain function of the step, such as a lambda or an optax schedule, as a schedule.

    A function given where a number is expected is wrapped automatically. It is traced once, so its constants are part
    of the compiled program: to change, sweep or differentiate them, write an `AbstractSchedule`.

    Args:
        function: function of the step that returns the value.
    """

    # A function cannot be a leaf, since JAX refuses an argument with a leaf that is not an array or a number.
    function: ScheduleFunction = eqx.field(static=True)

    def __call__(self, step: ArrayLike) -> Float[Array, ""]:
        """Return the value of the function at a step, in JAX's default float dtype."""
        # The function may return an integer or a Python number.
        return jnp.asarray(call_user(self.function, step)).astype(default_float())

    def _why_not_a_number(self) -> str | None:
        """Return why the function is not a schedule, if it doesn't map a step to a real scalar."""
        if is_tracing():  # the function was checked when it was given
            return None
        try:
            # Traced, because a program calls the function with a traced step.
            value = jax.eval_shape(self.function, jax.ShapeDtypeStruct((), jnp.int32))
        except jax.errors.TracerBoolConversionError:
            return "It is traced with the step: in place of `if step < n`, write `jnp.where(step < n, ..., ...)`."
        except jax.errors.JAXTypeError:
            return "It is traced with the step: compute its value with `jax.numpy`, without `float(step)` or NumPy."
        except Exception as error:
            return f"As a schedule it is called with the step, which failed: {type(error).__name__}: {error}"
        leaves = jtu.tree_leaves(value)
        shapes = [f"{x.dtype}{list(x.shape)}" for x in leaves]
        is_scalar = jtu.all_leaves([value]) and leaves[0].shape == ()
        if not is_scalar or jnp.issubdtype(leaves[0].dtype, jnp.complexfloating):
            return f"As a schedule it must return a real scalar for a step, and it returned {listing(shapes)}."
        return None


class AbstractStatefulSchedule(AbstractArithmetic):
    """A schedule with a state: its value depends on the past, such as previous losses, not only on the step.

    Implement `init()`, `update(state, **extra)` and `__call__(state, **extra)`. Use it in any numeric field of an
    optimizer, or of a transform inside `Scheduled` or `Injected`, which keep its state in theirs. At each step they
    call the schedule for the value and then `update` for the new state, both with the extra arguments of that step,
    such as the loss. When a value is needed outside a step, `__call__(state)` is called without extra arguments.

    If a hyperparameter of the schedule is itself a schedule of the step, it is replaced by its value at the step. A
    stateful schedule can also be an operand: in `SGD(0.5 * stateful)`, its current value is multiplied by 0.5.
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


def wraps_function(x: object) -> TypeIs[WrappedSchedule]:
    """Whether this is a function of the caller as a schedule."""
    return isinstance(x, WrappedSchedule)


def has_schedule(tree: PyTree) -> bool:
    """Whether there is a schedule, stateful or not, anywhere in the tree."""
    return any(map(is_schedule, jtu.tree_leaves(tree, is_leaf=is_schedule)))


def has_stateful_schedule(tree: PyTree) -> bool:
    """Whether there is a stateful schedule anywhere in the tree."""
    return any(map(is_stateful, jtu.tree_leaves(tree, is_leaf=is_stateful)))


def is_stateful(x: Any) -> bool:
    return isinstance(x, AbstractStatefulSchedule)


def as_number(x: Any) -> Any:
    """Convert a hyperparameter to its stored form: a scalar, a schedule, or None; nothing else is converted."""
    # A model is callable too. It is a node and not a leaf, and the check of the field refuses it.
    if callable(x) and not is_schedule(x) and not isinstance(x, (type, *ARRAY_TYPES)) and jtu.all_leaves([x]):
        is_stateful = callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))
        return WrappedStatefulSchedule(x) if is_stateful else WrappedSchedule(x)
    return as_scalar(x)


def number(default: Any = dataclasses.MISSING, *, needs: Requirement | None = None, optional: bool = False) -> Any:
    """Declare a field that holds a hyperparameter: a number or a schedule.

    A Python number is converted to a NumPy scalar of JAX's default float dtype, which starts no backend, has no weak
    type and survives donation. JAX arrays and tracers are kept; those of integers are cast to that dtype. A plain
    function of the step becomes a schedule.

    Args:
        default: default value of the field. Declare a required field with `required_number()`, which type checkers
            understand.
        needs: requirement on the number; values that violate it are certainly mistakes.
        optional: whether None is allowed, for a piece of the algorithm that can be left out.
    """
    given = {} if default is dataclasses.MISSING else {"default": default}
    metadata = {"number": True, "optional": optional, "needs": needs}
    return eqx.field(converter=as_number, metadata=metadata, **given)


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
    total_steps: Any = number(needs=POSITIVE)

    def __call__(self, step: ArrayLike) -> Any:
        """Return the value of the schedule at this fraction of the run."""
        dtype = default_float()
        return self.schedule(jnp.asarray(step).astype(dtype) / jnp.asarray(self.total_steps).astype(dtype))


class Expression(AbstractSchedule):
    r"""The sum, difference, product or quotient of two schedules, or of a schedule and a number; or a negated schedule.

        decay = 0.1 * schedules.Linear(3e-4, 0.0, 1000) / 3e-4
        -schedules.Linear(1.0, 0.0, 1000) + 1.0

    $$
    f(t) = a(t) \circ b(t), \qquad {\circ} \in \{+, -, \times, /\}, \qquad\text{or}\qquad f(t) = -b(t)
    $$

    It is written with Python's operators, and prints as the expression. The numbers in the expression are
    hyperparameters: `decay.replace(**{"left.left": 0.2})`.

    Args:
        operation: $\circ$, one of `"+"`, `"-"`, `"*"`, `"/"`.
        left: $a$, a number, a schedule or a function of the step; None for $-b$.
        right: $b$, a number, a schedule or a function of the step.

    Raises:
        ValueError: if a divisor is zero, or if `left` is None and the operation is not `"-"`.
    """

    # Static, because another operator makes another program.
    operation: Literal["+", "-", "*", "/"] = eqx.field(static=True, metadata={"options": tuple(OPERATIONS)})
    left: Any = number(optional=True)
    right: Any = number()

    def check(self) -> None:
        if self.left is None and self.operation != "-":
            raise ValueError(f'`Expression("{self.operation}", left=None, ...)`: only `"-"` works without `left`.')
        if self.operation == "/":
            right = require("`Expression(right=...)`", self.right, _NOT_ZERO, deferred=not is_tracing())
            object.__setattr__(self, "right", right)

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """Return the value of the expression at a step, in JAX's default float dtype."""
        right = _value_at(self.right, step)
        return -right if self.left is None else OPERATIONS[self.operation](_value_at(self.left, step), right)

    def _title(self) -> str:
        return self._written(lambda x: x._title() if is_schedule(x) else format_value(x))

    def __repr__(self) -> str:
        return self._written(format_value)

    def _written(self, text: Callable[[Any], str]) -> str:
        """The expression in Python's notation, with the parentheses that it needs."""

        def operand(x: Any, least: int) -> str:
            return f"({text(x)})" if _strength(x) < least else text(x)

        own = _strength(self)
        if self.left is None:
            return f"-{operand(self.right, own)}"
        return f"{operand(self.left, own)} {self.operation} {operand(self.right, own + 1)}"


class Clipped(AbstractSchedule):
    r"""A schedule with its values limited to an interval: the result of `schedule.clip(low, high)`.

    $$
    f(t) = \min(\max(g(t), l), u)
    $$

    Args:
        schedule: schedule $g$.
        low: $l$, a number or a schedule; None for no lower bound.
        high: $u$, a number or a schedule; None for no upper bound.

    Raises:
        ValueError: if there is no bound.
    """

    schedule: Any = number()
    low: Any = number(None, optional=True)
    high: Any = number(None, optional=True)

    def check(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("`Clipped` needs a bound: write `schedule.clip(low=...)` or `schedule.clip(high=...)`.")

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """Return the limited value at a step, in JAX's default float dtype."""
        bounds = [None if x is None else _value_at(x, step) for x in (self.low, self.high)]
        return jnp.clip(_value_at(self.schedule, step), *bounds)


def _expression(operation: Any, left: Any, right: Any) -> Any:
    """The schedule of an operator; NotImplemented, of which Python makes a TypeError, for anything but numbers."""
    operands = [as_number(x) for x in (left, right)]
    for given, x in zip((left, right), operands, strict=True):
        if not isinstance(x, (AbstractArithmetic, *ARRAY_TYPES)) or isinstance(given, type):
            return NotImplemented
        if shape := getattr(x, "shape", ()):
            call = f" {operation} ".join("schedule" if isinstance(x, AbstractArithmetic) else "x" for x in operands)
            raise ValueError(
                f"`{call}`: `x` must be a scalar, got an array of shape {shape}. To make a batch of schedules, one per "
                f"number, write `eqx.filter_vmap(lambda x: {call})(numbers)`."
            )
    return Expression(operation, *operands)


def _strength(x: Any) -> int:
    """How tightly Python binds the operator of an expression; a call binds the most."""
    operation = getattr(x, "operation", None)
    return 4 if operation is None else 3 if x.left is None else 2 if operation in "*/" else 1


def _value_at(x: Any, step: ArrayLike) -> Float[Array, "..."]:
    """The value of a number or a schedule at a step, in the default float dtype."""
    if is_stateful(x):
        raise ValueError(
            f"`{type(x).__name__}` is a stateful schedule, whose value depends on more than the step. Use the "
            f"schedule that contains it in an optimizer, which keeps its state, and read the value in "
            f"`optimizer.hyperparameters(state)`."
        )
    return jnp.asarray(x(step) if isinstance(x, AbstractSchedule) else x).astype(default_float())
