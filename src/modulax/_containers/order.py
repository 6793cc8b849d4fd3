"""Parts of a chain in an order that trains something else than was meant."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import PyTree

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
        if x._effect(tree).frozen is not None and any(map(_decays, transforms[i + 1 :])):
            yield (
                f"`{type(x).__name__}` stands before weight decay, which moves the frozen parameters. Put it at the "
                f"end of the chain."
            )


def _is_optimizer(transform: AbstractTransform) -> bool:
    """Whether it is an optimizer, or a container of one; the parts of an optimizer are not asked."""
    if isinstance(transform, AbstractOptimizer):
        return True
    return any(_is_optimizer(part.transform) for part in transform.each_part() if part.receives is None)


def _decays(transform: AbstractTransform) -> bool:
    """Whether weight decay is a field of the transform, or of one that a container holds, and not zero."""
    decay: Any = getattr(transform, "weight_decay", None)
    is_zero = isinstance(decay, (int, float, np.generic, np.ndarray)) and not np.any(decay)
    if decay is not None and not is_zero:
        return True
    return not isinstance(transform, AbstractOptimizer) and any(
        _decays(part.transform) for part in transform.each_part()
    )
