"""Parts of a chain in an order that trains something else than was meant."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._protocol.masks import AbstractLabels, mask_of, select
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform


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
        after = [type(y).__name__ for y in transforms[i + 1 :] if not y._keeps_updates]
        if x._keeps_parameters and after:
            name = type(x).__name__
            yield (
                f"`{name}` keeps parameters of its own, and doesn't see what `{after[0]}` does to its updates. Put it "
                f"outermost, `{name}(Chain(...))`, or last."
            )
        frozen = x._effect(tree).frozen
        if frozen is not None and any(a and b for a, b in zip(frozen, _moved(transforms[i + 1 :], tree), strict=True)):
            yield (
                f"`{type(x).__name__}` stands before weight decay, which moves the frozen parameters. Put it at the "
                f"end of the chain."
            )


def _moved(transforms: Sequence[AbstractTransform], tree: PyTree) -> list[bool]:
    """Which leaves some transforms in turn move by weight decay, without those that a later one freezes."""
    moved = [False] * len(jtu.tree_leaves(tree))
    for x in transforms:
        frozen = x._effect(tree).frozen or [False] * len(moved)
        rows = zip(moved, _decayed(x, tree), frozen, strict=True)
        moved = [(before or decays) and not is_frozen for before, decays, is_frozen in rows]
    return moved


def _is_optimizer(transform: AbstractTransform) -> bool:
    """Whether it is an optimizer, or a container of one; the parts of an optimizer are not asked."""
    if isinstance(transform, AbstractOptimizer):
        return True
    if hasattr(transform, "should_transform_fn"):  # another one may act at the other steps
        return False
    return any(_is_optimizer(part.transform) for part in transform.each_part() if part.receives is None)


def _decayed(transform: AbstractTransform, tree: PyTree) -> list[bool]:
    """Which leaves a weight decay that is not zero applies to, in the transform or in one inside it."""
    parts = [part for part in transform.each_part() if not part.auxiliary]
    decayed = [False] * len(jtu.tree_leaves(tree))
    for part in parts:
        seen = [True] * len(decayed) if part.receives is None else list(part.receives(tree))
        inside = iter(_decayed(part.transform, select(tree, seen)))
        decayed = [next(inside) or before if is_seen else before for before, is_seen in zip(decayed, seen, strict=True)]
    decay: Any = getattr(transform, "weight_decay", None)
    is_zero = isinstance(decay, (int, float, np.generic, np.ndarray)) and not np.any(decay)
    if parts or decay is None or is_zero:
        return decayed
    mask = getattr(transform, "mask", None)
    return mask_of(transform, mask, tree) if isinstance(mask, AbstractLabels) else [True] * len(decayed)
