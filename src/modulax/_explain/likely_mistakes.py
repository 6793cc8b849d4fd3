"""Learning rates that no run can have, or that low-precision parameters round away: warnings of `init`.

Between `2**k` and `2**(k + 1)`, the numbers of a dtype are `2**k * eps` apart, and a step below half of that changes no
parameter. The learning rate, with the factors that follow, is taken for the size of a step, as in Adam, unless the
transform tells its size for a learning rate of 1. It is compared if all of them are numbers on the host or schedules of
the step, of which the peaks count; an array on a device is not read.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .._plugin.arrays import is_inexact_array, is_narrower
from .._plugin.labels import select
from .._plugin.messages import listing
from .._plugin.transforms import RATES, AbstractHyperparameters, is_schedule, known_values, largest
from .._plugin.trees import dotted, leaves_with_paths, trainable
from ..authoring import AbstractOptimizer, Params
from ..schedules import AbstractSchedule
from .order import clips_of_steps, mistakes_in_order
from .rates import Rate, parts_over_run, rates_of

# The largest learning rate in common use, and the largest of which `init` does not warn. Peaks of a few units are in
# use; an argument of a schedule in the place of another one is a number of steps.
_USUAL, _MOST = 1.0, 50.0


def lost_steps(transform: Any, params: PyTree) -> Iterator[str]:
    """Yield a sentence for each learning rate and dtype of which parameters of magnitude 1 see nothing.

    Args:
        transform: the transform.
        params: the parameters, or anything with their dtypes.
    """
    leaves = leaves_with_paths(params)
    if not any(is_narrower(p.dtype, jnp.float32) for _, p in leaves):
        return
    found: dict[tuple[Any, bool], dict[str, float]] = {}
    for (path, p), rate in zip(leaves, rates_of(transform, params), strict=True):
        if rate is None or rate.is_fine or not is_narrower(p.dtype, jnp.float32):
            continue
        if (size := _smallest(rate)) and size < float(jnp.finfo(p.dtype).eps) / 2:
            found.setdefault((p.dtype, rate.size == 1), {})[path] = size
    for (dtype, is_rate), lost in found.items():
        yield _rounded_away(dtype, is_rate, lost)


def _rounded_away(dtype: Any, is_rate: bool, lost: dict[str, float]) -> str:
    """The sentence for steps of these sizes, by the paths of the parameters; a learning rate may be the size."""
    low, high = min(lost.values()), max(lost.values())
    one, several = ("a learning rate of", "learning rates of") if is_rate else ("a step of about", "steps of about")
    what = f"{one} {high:.7g} is" if low == high else f"{several} {low:.7g} to {high:.7g} are"
    bound = 2.0 ** (math.floor(math.log2(2 * high / float(jnp.finfo(dtype).eps))) + 1)
    which = f", {listing(lost)}" if any(lost) else ""
    return (
        f"{what} too small for parameters in {dtype}{which}: where their magnitude exceeds {bound:.7g}, a step of that "
        f"size is rounded away. Wrap the optimizer in `MasterWeights(...)` or in `StochasticRounding(...)`."
    )


def _smallest(rate: Rate) -> float | None:
    """The peak of a learning rate over the run, of stacked blocks the smallest one; None if it is not known."""
    size = largest(rate.value)
    size = None if size is None or rate.size is None else size * rate.size
    for factor in rate.factors:
        sizes = [1.0 if _is_in_state(x) else largest(x) for x in (factor if isinstance(factor, tuple) else (factor,))]
        size = None if size is None or None in sizes else size * min(filter(None, sizes), default=0.0)
    return size if size is None else float(f"{size:.7g}")


def _is_in_state(x: Any) -> bool:
    """Whether a factor is kept in the state of a transform, as that of `ReduceOnPlateau`, which is 1 at first."""
    return isinstance(x, AbstractHyperparameters) and not is_schedule(x)


def _wrong_rate(what: str, rate: Any, in_check: bool) -> Iterator[str]:
    """Yield a sentence for a learning rate that no run can have.

    Args:
        what: the name of the field and of the class that has it.
        rate: a number or a schedule.
        in_check: whether `check` asks, and not `init`.
    """
    values = known_values(rate)
    if isinstance(rate, AbstractSchedule):
        what += f", `{rate._title()}`,"
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
        remedy = "Give a positive number; to maximize, write `Chain(Scale(-1.0), ...)`."
        yield f"{what} is negative, {values.min():.4g}: the optimizer negates already. {remedy}"
    elif values[peak] > (_USUAL if in_check else _MOST) and (peak < len(values) - 1 or values.size == 1):
        yield f"{what} reaches {values[peak]:.4g}. Did you mix up its arguments?"


def _finite(values: np.ndarray) -> int:
    """The number of values before those at the end that are infinite: a rate that doubles every 100 steps overflows."""
    is_at_end = np.isinf(values) & ~np.isfinite(values[-1])
    return int(np.argmax(is_at_end)) if is_at_end.any() else len(values)


def warnings_in(transform: Any, tree: PyTree, in_check: bool = False) -> Iterator[str]:
    """Yield the sentences of a transform and of all inside it on what is probably a mistake with these parameters.

    Args:
        transform: the transform.
        tree: the parameters.
        in_check: whether `check` asks, and not `init`.
    """
    effect = transform._effect(tree)
    yield from (*effect.warnings, *(effect.suspects if in_check else ()))
    yield from (*mistakes_in_order(transform, tree), *(clips_of_steps(transform) if in_check else ()))
    rate = getattr(transform, "learning_rate", None)
    is_seen = "learning_rate" in getattr(rate, "fields_of_optimizer", ())  # that of the optimizer around it
    if isinstance(rate, AbstractSchedule) and getattr(transform, "flip_sign", True) and not is_seen:
        yield from _wrong_rate(f"the learning rate of `{type(transform).__name__}`", rate, in_check)
    # That of an optimizer with a learning rate of its own is not looked at again inside.
    is_one = rate is not None and getattr(transform, "adam_learning_rate", None) is None
    for part in transform.each_part() if is_one else parts_over_run(transform):
        with contextlib.suppress(ValueError):  # inside `Flatten`, patterns are for the paths of other arrays
            seen = tree if part.receives is None else select(tree, part.receives(tree))
            yield from list(warnings_in(part.transform, seen, in_check))


def wrong_numbers(transform: Any, in_check: bool = False) -> Iterator[str]:
    """Yield a sentence for each hyperparameter on the host that is NaN, and for a number that no optimizer can have.

    Args:
        transform: the transform.
        in_check: whether `check` asks, and not `init`.
    """
    for name, field, value, values in _known_numbers(transform):
        what = f"the {name.replace('_', ' ')} of `{type(transform).__name__}`"
        if np.isnan(values):
            yield f"{what} is NaN."
        elif isinstance(transform, AbstractOptimizer) and name in RATES:
            yield from _wrong_rate(what, value, in_check)
        elif reason := _impossible(transform, name, values) or (_unusual(field, values) if in_check else None):
            yield f"{what} is {values:.4g}{reason}"
    if not isinstance(transform, AbstractOptimizer):  # whose parts have the numbers of its fields
        for part in transform.each_part():
            yield from wrong_numbers(part.transform, in_check)


def _known_numbers(transform: Any) -> Iterator[tuple[str, Any, Any, np.ndarray]]:
    """Yield the name, the field, the value, and the value on the host of each number that is there."""
    for name, field in transform.__dataclass_fields__.items():
        value = getattr(transform, name) if field.metadata.get("number") else None
        values = None if isinstance(value, AbstractSchedule) else known_values(value)
        if values is not None:
            yield name, field, value, values


def _impossible(transform: Any, name: str, x: np.ndarray) -> str | None:
    """What no optimizer can have about a number that is not a learning rate."""
    if isinstance(transform, AbstractOptimizer) and name.endswith("weight_decay") and not 0 <= x < np.inf:
        return f": it makes weights {'grow' if x < 0 else 'infinite'}."
    return ": the steps grow without bound." if name == "momentum" and x > 1 else None


def _unusual(field: Any, x: np.ndarray) -> str | None:
    """The usual range of a number that is outside of it."""
    low, high = getattr(field.metadata["needs"], "usual", None) or (-np.inf, np.inf)
    return None if low <= x <= high else f"; {low:g} to {high:g} is usual."


def warn_of(transform: Any, params: Params) -> None:
    """Warn of what is probably a mistake with these parameters, such as a learning rate too small for their dtype."""
    arrays = [x for x in jtu.tree_leaves(params) if is_inexact_array(x)]
    if any(isinstance(x, Tracer) for x in arrays):
        return
    trained = trainable(params)
    found = [*trained_hyperparameters(trained), *warnings_in(transform, trained), *wrong_numbers(transform)]
    if any(x.dtype.itemsize < 4 for x in arrays):
        found += lost_steps(transform, trained)
    for sentence in dict.fromkeys(found):
        message = f"`{type(transform).__name__}.init`: {sentence} (To silence: {_SILENCE})"
        warnings.warn(message, LikelyMistake, stacklevel=5)


def trained_hyperparameters(params: Params) -> Iterator[str]:
    """Yield a sentence for each optimizer or schedule in a field of a model: its numbers would be trained.

    Args:
        params: the parameters. A tree of optimizers that is no model is trained on purpose.
    """

    def is_one(x: Any) -> bool:
        return isinstance(x, AbstractHyperparameters)

    for path, x in jtu.tree_leaves_with_path(params, is_leaf=is_one):
        is_field = any(isinstance(key, jtu.GetAttrKey) for key in path)
        if is_one(x) and is_field and any(map(is_inexact_array, jtu.tree_leaves(x))):
            yield (
                f"the hyperparameters of the `{type(x).__name__}` in the field `{dotted(path)}` of the model would be "
                f"trained. Write `freeze_hyperparameters(...)` around it."
            )


_SILENCE = '`warnings.simplefilter("ignore", modulax.LikelyMistake)`'


class LikelyMistake(UserWarning):
    """Warning of `init`: with these parameters, the optimizer would probably do something that you did not mean."""
