"""Parts of a chain in an order that trains something other than what was meant."""

import itertools
from collections.abc import Iterator, Sequence

import jax.tree_util as jtu
from jaxtyping import PyTree

from .._plugin.containers import LastOne, decays_in, in_any, is_chain, is_last, last_one_in
from .._plugin.transforms import KEEPS_PARAMETERS, keeps_gradients
from ..authoring import AbstractContainer, AbstractLeafwise, AbstractOptimizer, AbstractTransform


def mistakes_in_order(transform: AbstractTransform, tree: PyTree) -> Iterator[str]:
    """Yield a sentence for each part of a chain that is probably in the wrong place; none if it is no chain.

    Args:
        transform: the chain.
        tree: the parameters.
    """
    transforms = _in_order(transform)
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


def clips_of_steps(transform: AbstractTransform) -> Iterator[str]:
    """Yield a sentence for each clip with a fixed bound that stands in a chain after what has a learning rate."""
    for x, y in itertools.combinations(_in_order(transform), 2):
        is_late = _is_optimizer(x) or hasattr(x, "learning_rate")
        if is_late and type(y).__module__.endswith("._transforms.clipping") and not last_one_in(x):
            name, steps = type(y).__name__, f"the steps of `{type(x).__name__}`"
            yield f"`{name}` clips {steps}. To clip the gradients, put it first: `Chain({name}(...), ...)`."


def _in_order(transform: AbstractTransform) -> list[AbstractTransform]:
    """The parts of a chain."""
    return [part.transform for part in transform.each_part()] if is_chain(transform) else []


def _changed_after(x: AbstractTransform, after: Sequence[AbstractTransform], tree: PyTree) -> Iterator[str]:
    """A sentence if transforms after this one change updates that must be applied as they are."""
    # That two optimizers are one too many, is said already.
    changing = [y for y in after if not _hands_on(y) and not (_is_optimizer(x) and _is_optimizer(y))]
    last = last_one_in(x) if changing else None
    if last is None:
        return
    if last.transform._why_last != KEEPS_PARAMETERS:
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
    is_made_of_parts = isinstance(transform, AbstractContainer) and keeps_gradients(transform)
    parts = [part.transform for part in transform.each_part()] if is_made_of_parts else []
    return transform._keeps == "updates" or (is_made_of_parts and all(map(_hands_on, parts)))


def _seen_by_last(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves reach a transform, this one or one inside it, after which nothing may change the updates."""
    if is_last(transform):
        return [True] * len(jtu.tree_leaves(tree))
    return in_any((part for part in transform.each_part() if not part.auxiliary), tree, _seen_by_last)


def _changed(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves' updates a transform may change."""
    if _hands_on(transform):
        return [False] * len(jtu.tree_leaves(tree))
    if isinstance(transform, AbstractLeafwise):
        return transform._reached(tree)[0]
    if not isinstance(transform, AbstractContainer) or not keeps_gradients(transform):
        return [True] * len(jtu.tree_leaves(tree))
    inside = in_any(transform.each_part(), tree, _changed)
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
