"""Which transforms treat every array alike and alone, so that `Stacked` can map them over a stack by `jax.vmap`."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .._protocol.entry import as_written
from .._protocol.leafwise import AbstractLeafwise, reads_all_updates
from .._protocol.masks import AbstractLabels
from .._protocol.optimizer import AbstractOptimizer
from .._protocol.transform import AbstractTransform, everything_in, is_empty
from .._transforms.basic import Identity
from .._transforms.by_path import ScaleByDepth, ScaleByPath
from .._transforms.regularization import AddDecayedWeights, ProximalWeightDecay
from .._transforms.scaling import Scale, ScaleByLearningRate
from .chain import Chain

# Rules on single entries. At the end of a chain, XLA fuses them with the sum of a parameter and its update; in the
# rule on stacks, weight decay would copy every parameter into a stack.
_ENTRYWISE = (AddDecayedWeights, ProximalWeightDecay, Scale, ScaleByLearningRate, ScaleByPath, ScaleByDepth)


def without_end(transform: AbstractTransform) -> tuple[AbstractTransform, Chain]:
    """A chain of rules without the last ones that act on single entries and have no state, and the chain of these."""
    parts = dict(transform.parts) if type(transform) is Chain else {}
    end: dict[str, AbstractTransform] = {}
    are_rules = all(isinstance(part, AbstractLeafwise) for part in parts.values())
    for name, part in reversed(parts.items()) if are_rules else ():
        if not _is_entrywise(part):
            break
        end[name] = part
    rest = Chain(**{name: Identity() if name in end else part for name, part in parts.items()})
    return rest if end else transform, Chain(**dict(reversed(end.items())))


def _is_entrywise(part: AbstractTransform) -> bool:
    """Whether it is a rule on single entries that has no state."""
    if type(part) not in _ENTRYWISE or not isinstance(part, AbstractLeafwise):
        return False
    # A rule with a schedule has a step count in its state, which the rules at the end would not keep.
    return is_empty(jax.eval_shape(part.init_leaf, jax.ShapeDtypeStruct((), jnp.float32)))


def parts_on_stacks(transform: AbstractTransform) -> Iterator[AbstractTransform]:
    """The transforms that are mapped over stacks, among all in a transform."""
    if isinstance(transform, AbstractOptimizer) and refusal(transform) is None:
        for part in transform.each_part():
            yield from parts_on_stacks(part.transform)
    else:
        yield from everything_in(without_end(transform)[0])


def refusal(transform: AbstractTransform) -> str | None:
    """Why the transform cannot be mapped over a stack, or None; apart from the transforms inside."""
    cls = type(transform)
    if isinstance(transform, AbstractOptimizer):
        is_its_transform = as_written(cls.update) is as_written(AbstractOptimizer.update)
        return None if is_its_transform else "has an `update` of its own"
    names = cls.__dataclass_fields__
    if rule := next((name for name in names if isinstance(getattr(transform, name), AbstractLabels)), None):
        return f"chooses parameters by `{rule}`"
    if not isinstance(transform, AbstractLeafwise):
        return None if getattr(transform, "is_arraywise", False) else "may combine arrays, or tell them apart"
    if reads_all_updates(transform):
        return "looks at all arrays together"
    # Under `vmap`, every row has the same path, so that a rule cannot tell one parameter from another.
    if transform.where({"": np.zeros(())}) is not None:
        return "tells arrays apart"
    return None


def refused(transform: AbstractTransform, why: str) -> str:
    name = type(transform).__name__
    if name.startswith("_"):  # a part of an optimizer that has no public name, such as the clip of `Adan`
        return (
            f"`Stacked` updates arrays of one shape together, each as if it were alone, and a part of the optimizer "
            f"inside {why}. Leave it out, `max_grad_norm=None` for example, and put a transform around `Stacked` in "
            f"its place, as in `Chain(ClipByGlobalNorm(1.0), Stacked(...))`."
        )
    has_parts = any(True for _ in transform.each_part())
    around = f"`{name}(Stacked(...), ...)`" if has_parts else f"`Chain({name}(...), Stacked(...))`"
    return (
        f"`Stacked` updates arrays of one shape together, each as if it were alone, and `{name}` {why}. Put it around "
        f"`Stacked`, as in {around}."
    )
