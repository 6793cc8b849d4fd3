"""Parts of a chain in an order that trains something other than what was meant."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer
from .._protocol.leafwise import AbstractLeafwise
from .._protocol.masks import AbstractLabels, applies_to, mask_of, received, select
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform, Effect, Part
from .._support.types import Params


def mistakes_in_order(parts: Mapping[str, AbstractTransform], tree: PyTree) -> Iterator[str]:
    """Yield a sentence for each part of a chain that is probably in the wrong place.

    Args:
        parts: the parts by name, in their order.
        tree: the parameters.
    """
    transforms = list(parts.values())
    optimizers = [x for x in transforms if _is_optimizer(x)]
    if len(optimizers) > 1:
        first, second = (type(x).__name__ for x in optimizers[:2])
        yield (
            f"the chain has two optimizers, and `{second}` gets the steps of `{first}` as gradients. Use one; for two "
            f"groups of parameters, write a `Partition`."
        )
    for i, x in enumerate(transforms):
        yield from _changed_after(x, transforms[i + 1 :], tree)
        frozen = x._effect(tree).frozen
        if frozen is not None and any(a and b for a, b in zip(frozen, _moved(transforms[i + 1 :], tree), strict=True)):
            yield (
                f"`{type(x).__name__}` stands before weight decay, which moves the frozen parameters. Put it at the "
                f"end of the chain."
            )


def clips_of_steps(parts: Mapping[str, AbstractTransform]) -> Iterator[str]:
    """Yield a sentence for each clip with a fixed bound that stands after what has a learning rate."""
    for x, y in itertools.combinations(parts.values(), 2):
        is_late = _is_optimizer(x) or hasattr(x, "learning_rate")
        if is_late and type(y).__module__.endswith("._transforms.clipping") and not last_one_in(x):
            name, steps = type(y).__name__, f"the steps of `{type(x).__name__}`"
            yield f"`{name}` clips {steps}. To clip the gradients, put it first: `Chain({name}(...), ...)`."


class LastOne(NamedTuple):
    """A transform after which nothing may change the updates.

    Args:
        transform: the transform whose `_why_last` says so.
        written: the optimizer that is made of it, as a user writes it; else the transform itself.
    """

    transform: AbstractTransform
    written: AbstractTransform

    def __str__(self) -> str:
        why = "keeps parameters of its own" if self.transform._keeps_parameters else self.transform._why_last
        return f"`{type(self.written).__name__}` {why}"

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
    if _is_last(transform):
        return LastOne(transform, transform)
    parts = (part.transform for part in transform.each_part() if not part.auxiliary)
    found = next(filter(None, map(last_one_in, parts)), None)
    if found is None or not isinstance(transform, AbstractOptimizer):
        return found
    return found._replace(written=transform)


def _is_last(transform: AbstractTransform) -> bool:
    # `SAM` leaves the parameters where they are in that mode.
    return bool(transform._keeps_parameters or transform._why_last) and not getattr(transform, "opaque_mode", False)


class AbstractSteering(AbstractContainer):
    """A container of one optimizer that takes the parameters elsewhere than the steps of the optimizer would."""

    _keeps_parameters: ClassVar[bool] = True

    def _effect(self, tree: Params, state: Any = None) -> Effect:
        del state
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


def _changed_after(x: AbstractTransform, after: Sequence[AbstractTransform], tree: PyTree) -> Iterator[str]:
    """A sentence if transforms after this one change updates that must be applied as they are."""
    # That two optimizers are one too many, is said already.
    changing = [y for y in after if not _hands_on(y) and not (_is_optimizer(x) and _is_optimizer(y))]
    last = last_one_in(x) if changing else None
    if last is None:
        return
    if not last.transform._keeps_parameters:
        changing = [y for y in changing if y._effect(tree).frozen is None]
    seen = _seen_by_last(x, tree)
    changing = [y for y in changing if any(a and b for a, b in zip(seen, _changed(y, tree), strict=True))]
    if changing:
        other = type(changing[0]).__name__
        yield f"{last}, and doesn't see what `{other}` does to its updates. {_before(last, other)}"


def _before(last: LastOne, other: str) -> str:
    """What to write to let a transform change the updates before they come to one that must be the last."""
    is_written = last.written is last.transform
    around = last.around("Chain(...)" if is_written else f"Chain({{}}, {other}(...))")
    if around is None:
        return "Put it last."
    return f"Put it outermost, {around}, or last." if is_written else f"Write {around}, or put it last."


def _hands_on(transform: AbstractTransform) -> bool:
    """Whether it returns the updates that it is given, as `Monitor` does, or a chain of such."""
    is_made_of_parts = isinstance(transform, AbstractContainer) and transform._keeps_gradients
    parts = [part.transform for part in transform.each_part()] if is_made_of_parts else []
    return transform._keeps_updates or (is_made_of_parts and all(map(_hands_on, parts)))


def _in_any(parts: Iterable[Part], tree: PyTree, of: Callable[[AbstractTransform, PyTree], list[bool]]) -> list[bool]:
    """For which leaves `of` is true in any of the parts that receive them."""
    found = [False] * len(jtu.tree_leaves(tree))
    for part in parts:
        seen = received(part.receives, tree)
        inside = iter(of(part.transform, select(tree, seen)))
        found = [next(inside) or before if here else before for before, here in zip(found, seen, strict=True)]
    return found


def _seen_by_last(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves reach a transform, this one or one inside it, after which nothing may change the updates."""
    if _is_last(transform):
        return [True] * len(jtu.tree_leaves(tree))
    return _in_any((part for part in transform.each_part() if not part.auxiliary), tree, _seen_by_last)


def _changed(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves' updates a transform may change."""
    if _hands_on(transform):
        return [False] * len(jtu.tree_leaves(tree))
    if isinstance(transform, AbstractLeafwise):
        return applies_to(transform, tree)
    if not isinstance(transform, AbstractContainer) or not transform._keeps_gradients:
        return [True] * len(jtu.tree_leaves(tree))
    inside = _in_any(transform.each_part(), tree, _changed)
    frozen = transform._effect(tree).frozen or [False] * len(inside)
    return [a or b for a, b in zip(inside, frozen, strict=True)]


def _moved(transforms: Sequence[AbstractTransform], tree: PyTree) -> list[bool]:
    """Which leaves some transforms in turn move by weight decay, without those that a later one freezes."""
    moved = [False] * len(jtu.tree_leaves(tree))
    for x in transforms:
        frozen = x._effect(tree).frozen or [False] * len(moved)
        rows = zip(moved, decays_in(x, tree), frozen, strict=True)
        moved = [(before or decays) and not is_frozen for before, decays, is_frozen in rows]
    return moved


def _is_optimizer(transform: AbstractTransform) -> bool:
    """Whether it is an optimizer, or a container of one; the parts of an optimizer are not asked."""
    if isinstance(transform, AbstractOptimizer):
        return True
    if hasattr(transform, "should_transform_fn"):  # another one may act at the other steps
        return False
    return any(_is_optimizer(part.transform) for part in transform.each_part() if part.receives is None)


def decays_in(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves a weight decay that is not zero applies to, in the transform or in one inside it."""
    parts = [part for part in transform.each_part() if not part.auxiliary]
    decayed = _in_any(parts, tree, decays_in)
    decay: Any = getattr(transform, "weight_decay", None)
    is_zero = isinstance(decay, (int, float, np.generic, np.ndarray)) and not np.any(decay)
    if parts or decay is None or is_zero:
        return decayed
    mask = getattr(transform, "mask", None)
    return mask_of(transform, mask, tree) if isinstance(mask, AbstractLabels) else [True] * len(decayed)
