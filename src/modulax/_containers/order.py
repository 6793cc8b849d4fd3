"""Transforms after which nothing may change the updates, and what steers their parameters elsewhere."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer, AbstractOptimizer
from .._protocol.masks import AbstractLabels, mask_of, select
from .._protocol.transform import KEEPS_PARAMETERS, AbstractTransform, Effect, Part
from .._support.types import Params


class LastOne(NamedTuple):
    """A transform after which nothing may change the updates.

    Args:
        transform: the transform whose `_why_last` says so.
        written: the optimizer that is made of it, as a user writes it; else the transform itself.
    """

    transform: AbstractTransform
    written: AbstractTransform

    def __str__(self) -> str:
        return f"`{type(self.written).__name__}` {self.transform._why_last}"

    def around(self, changed: str) -> str | None:
        """What to write to change the updates inside it, None if nothing that a user writes is inside.

        Args:
            changed: what changes them, with `{}` in the place of the optimizer.
        """
        if not isinstance(self.transform, AbstractContainer):
            return None
        if self.written is self.transform:
            base = f"{type(next(self.transform.each_part()).transform).__name__}(...)"
        elif (base := getattr(self.written, "_base", None)) is None:
            return None
        missing = dataclasses.MISSING
        required = [x for x in dataclasses.fields(self.transform) if x.default is x.default_factory is missing]
        inside = changed.format(base)
        return f"`{type(self.transform).__name__}({inside}{', ...' if len(required) > 1 else ''})`"


def last_one_in(transform: AbstractTransform) -> LastOne | None:
    """The outermost transform, this one or one inside it, after which nothing may change the updates; None if any may.

    Containers hand on the updates of their parts, except those that are such a transform themselves.
    """
    if is_last(transform):
        return LastOne(transform, transform)
    parts = (part.transform for part in transform.each_part() if not part.auxiliary)
    found = next(filter(None, map(last_one_in, parts)), None)
    if found is None or not isinstance(transform, AbstractOptimizer):
        return found
    return found._replace(written=transform)


def is_last(transform: AbstractTransform) -> bool:
    # `SAM` leaves the parameters where they are in that mode.
    return bool(transform._why_last) and not getattr(transform, "opaque_mode", False)


class AbstractSteering(AbstractContainer):
    """A container of one optimizer that takes the parameters elsewhere than the steps of the optimizer would."""

    _why_last = KEEPS_PARAMETERS

    def _effect(self, tree: Params) -> Effect:
        inside = (part.transform for part in self.each_part())
        return Effect(warnings=list(mistakes_around(type(self).__name__, *inside)) if jtu.tree_leaves(tree) else ())


def mistakes_around(name: str, *inside: AbstractTransform) -> Iterator[str]:
    """A sentence if a container changes the updates of an optimizer that keeps parameters of its own.

    Args:
        name: the class of the container.
        inside: the transforms whose updates it changes.
    """
    last = next(filter(None, map(last_one_in, inside)), None)
    if last is None:
        return
    other = type(last.written).__name__
    may_be_outside = last.written is last.transform and isinstance(last.transform, AbstractContainer)
    may_be_outside &= not isinstance(last.transform, AbstractSteering)
    remedy = f"Write `{other}({name}(...))`." if may_be_outside else f"Use another optimizer inside `{name}`."
    yield f"{last}, and doesn't see what `{name}` does to its updates. {remedy}"


def refuse_multipliers(owner: str, optimizer: AbstractTransform, changed: str) -> None:
    """Raise an error if an optimizer would be followed by multipliers of its updates, which it may not be.

    Args:
        owner: the function that adds them.
        optimizer: the optimizer.
        changed: a call of the function, with `{}` in the place of the optimizer.
    """
    last = last_one_in(optimizer)
    if last is None:
        return
    around = last.around(changed) or f"`groups({type(last.written).__name__}(...), {{...}})`"
    raise ValueError(f"`{owner}` multiplies the updates, and {last}, so that nothing may follow it. Write {around}.")


def in_any(parts: Iterable[Part], tree: PyTree, of: Callable[[AbstractTransform, PyTree], list[bool]]) -> list[bool]:
    """For which leaves `of` is true in any of the parts that receive them."""
    found = [False] * len(jtu.tree_leaves(tree))
    for part in parts:
        seen = part._received(tree)
        inside = iter(of(part.transform, select(tree, seen)))
        found = [next(inside) or before if here else before for before, here in zip(found, seen, strict=True)]
    return found


def decays_in(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves a weight decay that is not zero applies to, in the transform or in one inside it."""
    parts = [part for part in transform.each_part() if not part.auxiliary]
    decayed = in_any(parts, tree, decays_in)
    decay: Any = getattr(transform, "weight_decay", None)
    is_zero = isinstance(decay, (int, float, np.generic, np.ndarray)) and not np.any(decay)
    if parts or decay is None or is_zero:
        return decayed
    mask = getattr(transform, "mask", None)
    return mask_of(transform, mask, tree) if isinstance(mask, AbstractLabels) else [True] * len(decayed)


def refuse_examples(owner: str, optimizer: AbstractTransform, measures: str) -> None:
    """Raise an error for a transform of per-example gradients in a container that measures the gradients it is given.

    Args:
        owner: the container.
        optimizer: the transform in it.
        measures: what the container does, beginning with a verb.
    """
    if optimizer.example_axes:
        raise ValueError(
            f"`{owner}` {measures}, and `{type(optimizer).__name__}` takes those of each example, which are neither "
            f"clipped nor averaged yet. Leave `{owner}` out."
        )
