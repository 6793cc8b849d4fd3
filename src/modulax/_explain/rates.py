"""The learning rate that each parameter gets: that of the last rule which has one, and the factors that follow.

`describe` shows it, `metrics` logs it, and `init` compares it with the spacing of low-precision parameters.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .. import Part
from .._plugin.labels import AbstractMultiplier, select
from .._plugin.trees import Names
from ..authoring import AbstractLeafwise, AbstractOptimizer, AbstractState
from .over_run import transform_over_run


class Rate(NamedTuple):
    """The learning rate of a parameter: a number or a schedule of a rule, times the factors that follow.

    Args:
        value: the field of the rule.
        factors: what the updates are multiplied by after it: numbers, schedules, tuples of these along an axis of the
            parameter, or a transform whose state has the factor.
        sign: 1.0 if the updates are against the gradient for a positive product, -1.0 if they are in its direction, and
            0.0 where the rule doesn't tell, which may negate or leave that to a factor of -1.
        is_fine: whether steps below the spacing of a low-precision parameter add up.
        size: about the size of the entries of an update for a learning rate of 1; None if it is not known.
        keys: the keys of the parts that lead to the rule, or to the optimizer that it is in.
        inside: those inside that optimizer.
        patterns: the pattern of each multiplier that follows; None for one that the parameter has without a pattern.
    """

    value: Any
    factors: tuple[Any, ...] = ()
    sign: float = 1.0
    is_fine: bool = False
    size: float | None = 1.0
    keys: Names = ()
    inside: Names = ()
    patterns: tuple[str | None, ...] = ()

    def times(self, factor: Any) -> Self:
        """Return the rate after a multiplication of the updates."""
        is_number = isinstance(factor, (int, float, np.generic, np.ndarray)) and not np.ndim(factor)
        if is_number and factor == -1:
            return self._replace(sign=-self.sign)
        return self._replace(factors=(*self.factors, factor))

    def of(self, pattern: str | None) -> Self:
        """Return the rate after a multiplier that chose its number by a pattern."""
        return self._replace(patterns=(*self.patterns, pattern))


class _Place(NamedTuple):
    """Where a transform is: the keys that lead to it, and those inside the outermost optimizer; None outside of one."""

    keys: Names = ()
    inside: Names | None = None

    def at(self, key: Any) -> "_Place":
        """Return the place of a part."""
        if key is None:
            return self
        if self.inside is None:
            return _Place((*self.keys, str(key)))
        return _Place(self.keys, (*self.inside, str(key)))

    def below(self, transform: Any) -> "_Place":
        """Return the place of what is inside a transform that is here."""
        return self._replace(inside=()) if self.inside is None and isinstance(transform, AbstractOptimizer) else self


def rates_of(transform: Any, tree: PyTree, state: Any = None) -> list[Rate | None]:
    """Return the learning rate of each parameter, in JAX's order; None if there is none, as for a frozen one.

    Args:
        transform: the transform. If `state` is given, the values of its schedules are in their places.
        tree: the parameters, or a tree like them.
        state: the state of the transform, from which the numbers are at the next step. Without one, schedules are those
            of the whole run.
    """
    return _after(transform, state, tree, [None] * len(jtu.tree_leaves(tree)), _Place())


def rates_by_pattern(transform: Any, state: Any = None) -> list[Rate]:
    """Return the learning rates of all patterns of a multiplier, without the parameters; none if these would tell.

    Args:
        transform: as in `rates_of`.
        state: as in `rates_of`.
    """
    return _after_all(transform, state, [], _Place()) or []


def parts_over_run(transform: Any, state: Any = None) -> list[Any]:
    """Return the parts of a transform, with the numbers of the next step, or with the schedules that they follow.

    Args:
        transform: the transform.
        state: its state, from which the next step is.
    """
    if not isinstance(transform, AbstractOptimizer):
        return list(transform.each_part(state))
    if state is None:
        return [Part("transform", None, transform_over_run(transform))]
    # Which may have schedules of its own.
    return [part._replace(transform=part.transform.at(part.state)) for part in transform.each_part(state)]


def is_of_library(transform: Any) -> bool:
    """Whether it is an optimizer of the library, and none that a user made of a class or a function."""
    return isinstance(transform, AbstractOptimizer) and type(transform).__module__.startswith("modulax._rules.")


def _effect_in(transform: Any, state: Any, tree: PyTree) -> Any:
    """The effect of a transform, with the factors that its state holds."""
    effect, held = transform._effect(tree), list(factors_held(state).values())
    return effect._replace(factors=held * len(effect.factors)) if held else effect


def factors_held(state: Any) -> dict[str, Any]:
    """Return the factors that a state holds, by the names of its fields."""
    fields = dataclasses.fields(state) if isinstance(state, AbstractState) else ()
    return {field.name: getattr(state, field.name) for field in fields if field.metadata.get("factor")}


def _after(transform: Any, state: Any, tree: PyTree, before: Sequence[Rate | None], place: _Place) -> list[Rate | None]:
    """The learning rates after a transform, given those before it."""
    rates = _after_parts(transform, state, tree, before, place)
    effect = _effect_in(transform, state, tree)
    if is_of_library(transform):  # which all negate
        rates = [rate and rate._replace(sign=1.0) for rate in rates]
    if effect.is_fine:
        rates = [rate and rate._replace(is_fine=True) for rate in rates]
    rates = _each(Rate.times, rates, effect.factors)
    rates = _each(lambda rate, size: rate._replace(size=size), rates, effect.sizes)
    if isinstance(transform, AbstractMultiplier):
        rates = _each(Rate.of, rates, transform.patterns_of(tree))
    return _each(lambda rate, is_frozen: None if is_frozen else rate, rates, effect.frozen)


def _after_parts(
    transform: Any, state: Any, tree: PyTree, before: Sequence[Rate | None], place: _Place
) -> list[Rate | None]:
    """The learning rates after the parts of a transform; without parts, its own one."""
    rates = list(before)
    parts = [part for part in parts_over_run(transform, state) if not part.auxiliary]
    for part in parts:
        rates = _after_part(part, tree, rates, place.below(transform).at(part.key))
    own = None if parts else _own_rate(transform, place)
    if own is None:
        return rates
    reached = transform._reached(tree)[0] if isinstance(transform, AbstractLeafwise) else [True] * len(rates)
    return [own if here else rate for rate, here in zip(rates, reached, strict=True)]


def _each(change: Callable[[Rate, Any], Rate | None], rates: list[Rate | None], by: Any) -> list[Rate | None]:
    """Change every rate by a value of its own; none if there are no values."""
    return rates if by is None else [rate and change(rate, x) for rate, x in zip(rates, by, strict=True)]


def _after_all(transform: Any, state: Any, before: list[Rate] | None, place: _Place) -> list[Rate] | None:
    """The learning rates after a transform, of which every parameter has one; None if it depends on the parameter."""
    rates = _all_after_parts(transform, state, before, place)
    effect = transform._effect(())
    if rates is None or effect.frozen is not None:
        return None
    if is_of_library(transform):  # which all negate
        rates = [rate._replace(sign=1.0) for rate in rates]
    if isinstance(transform, AbstractMultiplier):
        is_first = len(rates) == 1
        return [rates[0].times(x).of(name) for name, x in transform.multipliers_by_pattern()] if is_first else None
    if effect.factors is None:
        return rates
    (factor,) = _effect_in(transform, state, [np.zeros(())]).factors  # for all parameters the same
    return [rate.times(factor) for rate in rates]


def _all_after_parts(transform: Any, state: Any, rates: list[Rate] | None, place: _Place) -> list[Rate] | None:
    parts = [part for part in parts_over_run(transform, state) if not part.auxiliary]
    for part in parts:
        if part.receives is None:
            rates = _after_all(part.transform, part.state, rates, place.below(transform).at(part.key))
        elif _changes_rates(part.transform):
            rates = None
    own = None if parts else _own_rate(transform, place)
    return [own] if own else rates


def _own_rate(transform: Any, place: _Place) -> Rate | None:
    value = getattr(transform, "learning_rate", None)
    sign = 1.0 if transform._negates else _SIGNS[getattr(transform, "flip_sign", None)]
    return None if value is None else Rate(value, sign=sign, keys=place.keys, inside=place.inside or ())


def _changes_rates(transform: Any) -> bool:
    """Whether a transform, or one inside it, has a learning rate, a factor, or frozen parameters."""
    effect = transform._effect(())
    has_rate = getattr(transform, "learning_rate", None) is not None
    is_one = has_rate or effect.factors is not None or effect.frozen is not None
    return is_one or any(_changes_rates(part.transform) for part in transform.each_part())


_SIGNS = {True: 1.0, False: -1.0, None: 0.0}


def _after_part(part: Any, tree: PyTree, rates: list[Rate | None], place: _Place) -> list[Rate | None]:
    try:
        seen = part._received(tree)
        inside = [rate for rate, here in zip(rates, seen, strict=True) if here]
        new = iter(_after(part.transform, part.state, select(tree, seen), inside, place))
    except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
        return rates
    return [next(new) if here else rate for rate, here in zip(rates, seen, strict=True)]
