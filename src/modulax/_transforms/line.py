"""The loss along a search direction, shared by the line searches in `zoom.py` and `backtracking.py`.

`AbstractLinesearch` turns the arguments of `update` into a `Line`, the points `params + step * updates`, with the
gradient and the slope at its start. A search evaluates the loss at `line.at(step)`, which is rounded to the dtype of
the parameters as the final step will be, and describes each evaluation as a `Trial`: where it led, and by how much it
misses the conditions (`miss`). The result of the search is `line.scaled(step)`. Searches run in `bounded_loop`, a
`while_loop` that can also be differentiated in reverse mode, where it is replaced by a `scan` of the largest length.
"""

import abc
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Bool, Float

from .._protocol.step import apply_updates
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import at_least_float32, loss_of
from .._support.checks import listing
from .._support.tracing import call_user
from .._support.types import Params, Updates
from .._support.varying import carried, cond
from ..tree._math import inner
from ..tree._paths import leaves_by_names

Carry = TypeVar("Carry")


Scalar = Float[Array, ""]


Objective = Callable[[Params], Scalar]


def times(x: Any, scalar: Any) -> Array:
    """An array times a real number: computed in at least float32, returned in the dtype of the array."""
    wide = at_least_float32(x.dtype)
    return (x.astype(wide) * scalar.astype(wide)).astype(x.dtype)


class Trial(NamedTuple):
    """An evaluation of the loss: step size, loss and gradient there, and by how much it misses the conditions."""

    step: Scalar
    value: Scalar
    grad: Updates
    decrease_error: Scalar
    curvature_error: Any = None


class Line(NamedTuple):
    """The points `params + step * updates`, with the loss as a function of the parameters.

    Gradients follow the convention of `jax.grad`: for complex parameters they are the conjugate of the direction of
    ascent.
    """

    objective: Objective
    params: Params
    updates: Updates

    def scaled(self, step: Scalar) -> Updates:
        """The updates times the step, in their own dtypes; zeros for a step of zero, even if updates aren't finite."""
        return jtu.tree_map(lambda u: jnp.where(step == 0, jnp.zeros_like(u), times(u, step)), self.updates)

    def at(self, step: Scalar) -> Params:
        """The parameters after this step, rounded to their dtype."""
        return apply_updates(self.params, self.scaled(step))

    def slope(self, grad: Updates) -> Scalar:
        """The derivative of the loss along the line, from its gradient."""
        return inner(jtu.tree_map(jnp.conj, grad), self.updates)


class AbstractLinesearch(AbstractTransform):
    """A line search along the updates; a subclass implements `_step_along`."""

    needs: ClassVar[tuple[str, ...]] = ("params", "value", "grad", "value_fn")

    @abc.abstractmethod
    def _step_along(self, line: Line, state: Any, value: Scalar, slope: Scalar, here: Updates) -> tuple[Scalar, Any]:
        """Return the step size and the new state.

        Args:
            line: the line through the parameters along the updates.
            state: the state of the last search.
            value: the loss at the parameters.
            slope: its slope there.
            here: its gradient there, in the dtypes of the parameters.
        """

    def update(
        self,
        updates: Updates,
        state: Any,
        params: Params | None = None,
        value: ArrayLike | None = None,
        grad: Updates = None,
        value_fn: Any = None,
        **extra: Any,
    ) -> tuple[Updates, Any]:
        """The updates multiplied by the step size, and the new state."""
        assert value is not None
        line, here, slope = line_of(type(self).__name__, updates, params, grad, value_fn, extra)
        step, new_state = self._step_along(line, state, loss_of(value), slope, here)
        return line.scaled(step), new_state


def line_of(
    owner: str, updates: Updates, params: Params, grad: Updates, value_fn: Any, extra: Mapping[str, Any]
) -> tuple[Line, Updates, Scalar]:
    """The line through the parameters along the updates, the gradient there as `jax.grad` returns it, and the slope."""
    objective = _objective(owner, value_fn, extra)
    gradients = leaves_by_names(owner, grad)
    parameters = leaves_by_names(owner, params)
    lacking = [".".join(n) for n, p in parameters.items() if getattr(gradients.get(n), "shape", None) != p.shape]
    if lacking:
        raise ValueError(
            f"`{owner}` needs `grad`, the gradient at the parameters, with their leaves and shapes. Missing, or of "
            f"another shape: {listing(lacking)}. Call `update(updates, state, params, value=value, grad=grads, "
            f"value_fn=loss)`."
        )
    line = Line(objective, params, updates)
    # Of complex parameters, `grad` is the conjugate of what `jax.grad` returns, as any gradient given to a transform.
    here = jtu.tree_structure(params).unflatten([jnp.conj(jnp.asarray(gradients[n])) for n in parameters])
    return line, jtu.tree_map(lambda g, p: g.astype(p.dtype), here, params), line.slope(here)


def _objective(owner: str, value_fn: Any, extra: Mapping[str, Any]) -> Objective:
    """`value_fn` as a function of the parameters alone; its other arguments are taken from `extra` by name."""
    if not callable(value_fn):
        raise ValueError(
            f"`{owner}` needs `value_fn`, the function to minimize, which takes the parameters and returns a scalar; "
            f"got {value_fn!r}."
        )
    arguments = _arguments(owner, value_fn, extra)

    def objective(params: Params) -> Scalar:
        value: Any = call_user(value_fn, params, **arguments)
        if jnp.shape(value) != ():
            raise ValueError(f"`{owner}`: `value_fn` must return a scalar, got an array of shape {jnp.shape(value)}.")
        return loss_of(value)

    return objective


def _arguments(owner: str, value_fn: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The extra arguments that the signature of `value_fn` names."""
    named = list(inspect.signature(value_fn).parameters.values())[1:]
    needed = [p.name for p in named if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if lacking := [name for name in needed if name not in extra]:
        call = ", ".join(f"{name}=..." for name in lacking)
        raise ValueError(
            f"`{owner}`: `value_fn` takes {listing(lacking)} in addition to the parameters. Pass it to `update`, "
            f"`update(..., value_fn=loss, {call})`, or bind it: `value_fn=jax.tree_util.Partial(loss, {call})`."
        )
    return {p.name: extra[p.name] for p in named if p.name in extra}


def bounded_loop(proceeds: Callable[[Carry], Array], body: Callable[[Carry], Carry], start: Carry, most: int) -> Carry:
    """`jax.lax.while_loop` with at most `most` rounds, which can also be differentiated in reverse mode."""
    start = carried(body, start)
    # Values that the functions close over become arguments, because `custom_jvp` doesn't differentiate closures.
    functions = eqx.filter_closure_convert(proceeds, start), eqx.filter_closure_convert(body, start)
    arrays, static = eqx.partition((functions, start), eqx.is_array)

    def while_it_proceeds(arrays: Any) -> Carry:
        (proceeds, body), start = eqx.combine(arrays, static)

        def going(carry: tuple[Array, Carry]) -> Array:
            return (carry[0] < most) & proceeds(carry[1])

        done = jnp.zeros((), jnp.int32), start
        return jax.lax.while_loop(going, lambda carry: (carry[0] + 1, body(carry[1])), done)[1]

    def every_round(arrays: Any) -> Carry:
        (proceeds, body), start = eqx.combine(arrays, static)

        def one(carry: Carry, _: None) -> tuple[Carry, None]:
            return cond(proceeds(carry), lambda: body(carry), lambda: carry), None

        return jax.lax.scan(one, start, length=most)[0]

    loop = jax.custom_jvp(while_it_proceeds)
    loop.defjvp(lambda primals, tangents: jax.jvp(every_round, primals, tangents))
    return loop(arrays)


def miss(excess: Scalar, is_fine: Array) -> Scalar:
    """By how much a condition is missed: zero if it holds, infinity where the evaluation isn't finite."""
    return jnp.where(is_fine & ~jnp.isnan(excess), jnp.maximum(excess, 0), jnp.inf)


def report(
    owner: object,
    tried: Array,
    value: Scalar,
    slope: Scalar,
    found: Trial,
    reasons: Mapping[str, Bool[Array, ""]] = MappingProxyType({}),
) -> None:
    """Prints one line about a search.

    Args:
        owner: the line search.
        tried: number of evaluations.
        value: the loss where the search began.
        slope: the slope there.
        found: the trial whose step is taken.
        reasons: sentences that explain a failure, each with whether it is true.
    """
    message = (
        "{name}: step size {step} after {tried} evaluations; loss {value} -> {new_value}, initial slope {slope}; "
        "decrease error {decrease}"
    )
    numbers: dict[str, Any] = {"step": found.step, "tried": tried, "value": value, "new_value": found.value}
    numbers |= {"slope": slope, "decrease": found.decrease_error}
    if found.curvature_error is not None:
        message, numbers["curvature"] = message + ", curvature error {curvature}", found.curvature_error
    message = message.replace("{name}", type(owner).__name__)

    def write(are_true: list[Array], numbers: dict[str, Array]) -> None:
        told = [reason for reason, is_true in zip(reasons, are_true, strict=True) if is_true]
        print(". ".join([message.format(**numbers), *told]))  # noqa: T201 (asked for by `verbose`)

    jax.debug.callback(write, list(reasons.values()), numbers)
