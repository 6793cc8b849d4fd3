"""Learning rates that no run can have, or that low-precision parameters round away: warnings of `init`.

Between `2**k` and `2**(k + 1)`, the numbers of a dtype are `2**k * eps` apart, and a step below half of that changes no
parameter. The learning rate is taken for the size of a step, as in Adam. It is compared if it is a number on the host
or a schedule of the step, of which the peak counts; an array on a device is not read.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._support.arithmetic import is_narrower
from .._support.checks import listing
from ..tree._paths import leaves_with_paths
from .masks import select
from .schedule import AbstractSchedule, title, values_over_steps


def lost_steps(transform: Any, params: PyTree) -> Iterator[str]:
    """Yield a sentence for each learning rate and dtype of which parameters of magnitude 1 see nothing.

    Args:
        transform: the transform.
        params: the parameters, or anything with their dtypes.
    """
    leaves = leaves_with_paths(params)
    if not any(is_narrower(p.dtype, jnp.float32) for _, p in leaves):
        return
    found: dict[tuple[float, Any], list[str]] = {}
    for (path, p), rate in zip(leaves, _rates(transform, params), strict=True):
        if rate and is_narrower(p.dtype, jnp.float32) and rate < float(jnp.finfo(p.dtype).eps) / 2:
            found.setdefault((rate, p.dtype), []).append(path)
    for (rate, dtype), paths in found.items():
        bound = 2.0 ** (math.floor(math.log2(2 * rate / float(jnp.finfo(dtype).eps))) + 1)
        which = f", {listing(paths)}" if any(paths) else ""
        yield (
            f"a learning rate of {rate:.7g} is too small for parameters in {dtype}{which}: where their magnitude "
            f"exceeds {bound:.7g}, a step of that size is rounded away. Wrap the optimizer in `MasterWeights(...)` or "
            f"in `StochasticRounding(...)`."
        )


def _rates(transform: Any, tree: PyTree) -> list[float | None]:
    """The learning rate of each leaf, None if it is unknown or if no step is lost."""
    n = len(jtu.tree_leaves(tree))
    rate = getattr(transform, "learning_rate", None)
    effect = transform._effect(tree)
    if effect.is_fine:
        return [None] * n
    parts = [part for part in transform.each_part() if not part.auxiliary]
    if not parts:
        if effect.frozen is not None:
            return [0.0 if is_frozen else None for is_frozen in effect.frozen]
        return [largest(rate)] * n
    rates: list[float | None] = [None] * n
    for part in parts:
        try:
            seen = None if part.receives is None else part.receives(tree)
        except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
            continue
        inside = iter(_rates(part.transform, tree if seen is None else select(tree, seen)))
        for i in range(n):
            if seen is None or seen[i]:
                rates[i] = _last(rates[i], next(inside))
    # `each_part` has the value of a schedule at the first step, where it may be zero.
    peak = largest(rate) if isinstance(rate, AbstractSchedule) else None
    return rates if peak is None else [x or peak for x in rates]


def largest(rate: Any) -> float | None:
    """Return the largest magnitude of a learning rate over the run; None if it is not known on the host.

    Args:
        rate: a number or a schedule.
    """
    values = _values(rate)
    if values is None:
        return None
    peak = float(np.max(np.abs(values)))
    return float(f"{peak:.3g}") if values.ndim else peak  # that of a schedule is sampled, so not exact


def wrong_rate(name: str, rate: Any, most: float) -> Iterator[str]:
    """Yield a sentence for a learning rate that no run can have.

    Args:
        name: the name of the class that has it.
        rate: a number or a schedule.
        most: the largest learning rate that a run may have.
    """
    values, what = _values(rate), f"the learning rate of `{name}`"
    if isinstance(rate, AbstractSchedule):
        what += f", `{title(rate)}`,"
    if values is None:
        return
    # The length of the run is not known, and a function may be meant for its steps only: it may fall below zero after
    # them, or grow without end.
    values = np.atleast_1d(values)
    values = values[: max(1, _finite(values))]
    peak = np.argmax(values)
    if np.isnan(values[:2]).any():
        yield f"{what} is NaN."
    elif values.min() < 0 >= values.max():
        yield f"{what} is negative, {values.min():.4g}: the optimizer negates already. Give a positive number."
    elif values[peak] > most and (peak < len(values) - 1 or values.size == 1):
        yield f"{what} reaches {values[peak]:.4g}. Did you mix up its arguments?"


def _finite(values: np.ndarray) -> int:
    """The number of values before those at the end that are infinite: a rate that doubles every 100 steps overflows."""
    return (
        len(values)
        if np.isfinite(values[-1])
        else int(np.argmax(np.isinf(values)) if np.isinf(values).any() else len(values))
    )


def _values(rate: Any) -> np.ndarray | None:
    """The values of a learning rate over the run; None if they are not known on the host."""
    if isinstance(rate, AbstractSchedule):
        return values_over_steps(rate)
    # An array on a device is not read, because `init` would wait for it.
    is_known = isinstance(rate, (float, int, np.generic, np.ndarray)) and np.ndim(rate) == 0
    return np.asarray(rate, np.float64) if is_known else None


def warnings_in(transform: Any, tree: PyTree, most: float = 50.0) -> Iterator[str]:
    """Yield the sentences of a transform and of all inside it on what is probably a mistake with these parameters.

    Args:
        transform: the transform.
        tree: the parameters.
        most: the largest learning rate that a schedule may have. Peaks of a few units are in use; an argument of the
            schedule in the place of another one is a number of steps.
    """
    yield from transform._effect(tree).warnings
    rate = getattr(transform, "learning_rate", None)
    if isinstance(rate, AbstractSchedule) and getattr(transform, "flip_sign", True):
        yield from wrong_rate(type(transform).__name__, rate, most)
    for part in transform.each_part():
        try:
            seen = None if part.receives is None else part.receives(tree)
        except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
            continue
        yield from warnings_in(part.transform, tree if seen is None else select(tree, seen), most)


def not_numbers(transform: Any) -> Iterator[str]:
    """Yield a sentence for each hyperparameter on the host that is NaN, such as one from a failed computation.

    Args:
        transform: the transform.
    """
    for name, field in transform.__dataclass_fields__.items():
        value = getattr(transform, name) if field.metadata.get("number") else None
        values = None if isinstance(value, AbstractSchedule) else _values(value)
        if values is not None and np.isnan(values):
            yield f"the {name.replace('_', ' ')} of `{type(transform).__name__}` is NaN."
    if not hasattr(transform, "transform"):  # an optimizer, whose parts have the numbers of its fields
        for part in transform.each_part():
            yield from not_numbers(part.transform)


def _last(before: float | None, after: float | None) -> float | None:
    return before if after is None else after
