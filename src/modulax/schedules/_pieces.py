"""Piecewise schedules."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

from .._protocol.fields import Number, Numbers, ScalarOrSchedule, required_number, required_numbers
from .._protocol.schedule import AbstractArithmetic, AbstractSchedule, as_number
from .._support.arithmetic import default_float
from .._support.checks import NEVER_NEGATIVE, brief
from .._support.printing import format_value
from ._base import AbstractCurve, after, half_cosine, mix, progress
from ._curves import Constant


def _changes(call: str, given: Any) -> dict[Any, Any]:
    """The factors by their steps; raise an error for anything but a mapping."""
    if given is not None and not isinstance(given, Mapping):
        name = call.partition("(")[0]
        raise ValueError(
            f"`{name}` needs a mapping from steps to factors, such as `{call}, {{1000: 0.1}})`, got {brief(given)}."
        )
    return dict(given or {})


class PiecewiseConstant(AbstractCurve):
    r"""Piecewise constant schedule: the value is multiplied by a factor at each boundary (step decay).

    $$
    f(t) = a \prod_{i:\, t \ge t_i} c_i
    $$

    The change takes effect at the boundary itself; in Keras it does one step later.

    Args:
        init_value: $a$, initial value.
        boundaries_and_scales: mapping from steps $t_i$ to factors $c_i$.
    """

    init_value: Number = required_number()
    boundaries: Numbers = required_numbers()
    scales: Numbers = required_numbers(needs=NEVER_NEGATIVE)

    def __init__(
        self, init_value: ScalarOrSchedule, boundaries_and_scales: Mapping[Any, ScalarOrSchedule] | None = None
    ):
        changes = _changes("PiecewiseConstant(init_value", boundaries_and_scales)
        self.init_value = init_value
        self.boundaries = tuple(changes)
        self.scales = tuple(changes.values())

    def value(self, t):
        out = jnp.broadcast_to(self.init_value, t.shape)
        for boundary, scale in zip(self.boundaries, self.scales, strict=True):
            out = jnp.where(t >= boundary, out * scale, out)
        return out


class PiecewiseInterpolate(AbstractCurve):
    r"""Piecewise interpolation, linear or cosine, between the values of `PiecewiseConstant`.

    $$
    f(t) = v_{i+1} + (v_i - v_{i+1})\, w\!\left(\frac{t - t_i}{t_{i+1} - t_i}\right)
    \quad\text{for } t_i \le t < t_{i+1}, \qquad v_{i+1} = c_{i+1} v_i, \quad v_0 = a, \quad t_0 = 0,
    $$

    with $w(x) = 1 - x$ or $w(x) = \tfrac12 (1 + \cos \pi x)$, and constant after the last boundary. The factors
    accumulate as in `PiecewiseConstant`: `{4: 0.1, 8: 0.1}` ends at a hundredth of the initial value.

    Args:
        interpolate_type: `"linear"` or `"cosine"`.
        init_value: $a$, initial value.
        boundaries_and_scales: mapping from steps $t_i$, at which a value is reached, to factors $c_i$.

    Raises:
        ValueError: if the boundaries of a changed schedule are not in ascending order.
    """

    interpolate_type: Literal["linear", "cosine"] = eqx.field(static=True, metadata={"options": ("linear", "cosine")})
    init_value: Number = required_number()
    boundaries: Numbers = required_numbers(needs=NEVER_NEGATIVE)
    scales: Numbers = required_numbers(needs=NEVER_NEGATIVE)

    def __init__(
        self,
        interpolate_type: Literal["linear", "cosine"],
        init_value: ScalarOrSchedule,
        boundaries_and_scales: Mapping[Any, ScalarOrSchedule] | None = None,
    ):
        given = _changes("PiecewiseInterpolate(interpolate_type, init_value", boundaries_and_scales)
        changes = dict(sorted(given.items()))
        self.interpolate_type = interpolate_type
        self.init_value = init_value
        self.boundaries = tuple(changes)
        self.scales = tuple(changes.values())

    def check(self) -> None:
        known = [b for b in self.boundaries if not isinstance(b, (Tracer, AbstractArithmetic)) and np.ndim(b) == 0]
        if len(known) == len(self.boundaries) and np.any(np.diff(np.asarray(known)) < 0):
            raise ValueError(
                f"`PiecewiseInterpolate(boundaries=...)` must be in ascending order, got "
                f"{format_value(self.boundaries)}. Create a new one, or replace them all: `replace(boundaries=(...))`."
            )

    def value(self, t):
        values = [self.init_value]
        for scale in self.scales:
            values.append(values[-1] * scale)
        return interpolated(t, self.boundaries, values, self.interpolate_type)


def interpolated(t: Any, boundaries: Sequence[Any], values: Sequence[Any], kind: str) -> Any:
    """Interpolate from the first value at step 0 through the other values at the boundaries."""
    out = jnp.broadcast_to(values[0], t.shape)
    starts = [jnp.zeros_like(values[0]), *boundaries]
    for start, end, before, behind in zip(starts, boundaries, values, values[1:], strict=False):
        x = progress(t - start, end - start)
        left = half_cosine(x) if kind == "cosine" else 1 - x
        out = jnp.where(t >= start, mix(behind, before, left), out)
    return out


class Join(AbstractSchedule):
    r"""Concatenate schedules; each counts its own steps from the boundary at which it begins.

    $$
    f(t) = f_i(t - t_i) \quad\text{for } t_i \le t < t_{i+1}, \qquad t_0 = 0
    $$

    Args:
        schedules: the schedules $f_i$, or numbers.
        boundaries: the steps $t_1, t_2, \dots$ at which the second and the following schedules begin.

    Raises:
        ValueError: if the number of boundaries is not one less than that of the schedules.
    """

    schedules: tuple[AbstractSchedule, ...]
    boundaries: Numbers = required_numbers()

    def __init__(self, schedules: Any, boundaries: Any):
        found = tuple(x if isinstance(x := as_number(s), AbstractSchedule) else Constant(x) for s in schedules)
        self.schedules = found
        self.boundaries = tuple(boundaries)
        if len(self.schedules) != len(self.boundaries) + 1:
            raise ValueError(
                f"`Join` needs one boundary between each pair of schedules, got {len(self.schedules)} schedules and "
                f"{len(self.boundaries)} boundaries."
            )

    def __call__(self, step: ArrayLike) -> Float[Array, "..."]:
        """Return the value of the schedule that the step falls into."""
        dtype = default_float()

        def called(schedule: AbstractSchedule) -> Any:
            return lambda t: jnp.asarray(schedule(t)).astype(dtype)

        t = jnp.asarray(step).astype(dtype)
        out = called(self.schedules[0])(t)
        for schedule, boundary in zip(self.schedules[1:], self.boundaries, strict=True):
            out = after(t, jnp.asarray(boundary).astype(dtype), out, called(schedule))
        return out
