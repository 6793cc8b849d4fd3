"""The learning rate that each parameter gets: that of the last rule which has one, and the factors that follow.

`describe` shows it, `metrics` logs it, and `init` compares it with the spacing of low-precision parameters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .masks import applies_to, select


class Rate(NamedTuple):
    """The learning rate of a parameter: a number or a schedule of a rule, times the factors that follow.

    Args:
        value: the field of the rule.
        factors: what the updates are multiplied by after it: numbers, schedules, tuples of these along an axis of the
            parameter, or a transform whose state has the factor.
        sign: 1.0 if the updates are against the gradient for a positive product, -1.0 if they are in its direction, and
            0.0 where the rule doesn't tell, which may negate or leave that to a factor of -1.
        is_fine: whether steps below the spacing of a low-precision parameter add up.
    """

    value: Any
    factors: tuple[Any, ...] = ()
    sign: float = 1.0
    is_fine: bool = False

    def times(self, factor: Any) -> Self:
        """Return the rate after a multiplication of the updates."""
        is_number = isinstance(factor, (int, float, np.generic, np.ndarray)) and not np.ndim(factor)
        if is_number and factor == -1:
            return self._replace(sign=-self.sign)
        return self._replace(factors=(*self.factors, factor))


def rates_of(transform: Any, tree: PyTree, state: Any = None) -> list[Rate | None]:
    """Return the learning rate of each parameter, in JAX's order; None if there is none, as for a frozen one.

    Args:
        transform: the transform. If `state` is given, the values of its schedules are in their places.
        tree: the parameters, or a tree like them.
        state: the state of the transform, from which the numbers are at the next step. Without one, schedules are those
            of the whole run.
    """
    return _after(transform, state, tree, [None] * len(jtu.tree_leaves(tree)))


def parts_over_run(transform: Any, state: Any = None) -> list[Any]:
    """Return the parts of a transform. Without a state, they have schedules where their numbers follow one.

    Args:
        transform: the transform.
        state: its state.
    """
    over_run = getattr(transform, "_part_over_run", None)
    return [over_run()] if over_run is not None and state is None else list(transform.each_part(state))


def _after(transform: Any, state: Any, tree: PyTree, before: Sequence[Rate | None]) -> list[Rate | None]:
    """The learning rates after a transform, given those before it."""
    rates = list(before)
    parts = [part for part in parts_over_run(transform, state) if not part.auxiliary]
    for part in parts:
        rates = _after_part(part, tree, rates)
    value = getattr(transform, "learning_rate", None)
    if value is not None and not parts:
        own = Rate(value, sign=_SIGNS[getattr(transform, "flip_sign", None)])
        reached = applies_to(transform, tree) if hasattr(transform, "where") else [True] * len(rates)
        rates = [own if here else rate for rate, here in zip(rates, reached, strict=True)]
    if type(transform).__module__.startswith("modulax._optimizers."):  # which all negate
        rates = [rate and rate._replace(sign=1.0) for rate in rates]
    effect = transform._effect(tree, state)
    if effect.factors is not None:
        rates = [rate and rate.times(x) for rate, x in zip(rates, effect.factors, strict=True)]
    if effect.frozen is not None:
        rates = [None if is_frozen else rate for rate, is_frozen in zip(rates, effect.frozen, strict=True)]
    return [rate and rate._replace(is_fine=True) for rate in rates] if effect.is_fine else rates


_SIGNS = {True: 1.0, False: -1.0, None: 0.0}


def _after_part(part: Any, tree: PyTree, rates: list[Rate | None]) -> list[Rate | None]:
    try:
        seen = [True] * len(rates) if part.receives is None else list(part.receives(tree))
        inside = [rate for rate, here in zip(rates, seen, strict=True) if here]
        new = iter(_after(part.transform, part.state, select(tree, seen), inside))
    except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
        return rates
    return [next(new) if here else rate for rate, here in zip(rates, seen, strict=True)]
