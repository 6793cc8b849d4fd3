"""Which transforms treat every array alike and alone, so that `Stacked` can map them over a stack by `jax.vmap`."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._protocol.container import AbstractContainer, AbstractOptimizer
from .._protocol.entry import as_written
from .._protocol.extra_arguments import TREES
from .._protocol.leafwise import AbstractLeafwise, reads_all_updates
from .._protocol.masks import AbstractLabels
from .._protocol.transform import AbstractTransform, Part, is_empty
from .._support.keys import is_key_data
from .._transforms.basic import Identity
from .._transforms.by_path import ScaleByDepth, ScaleByPath
from .._transforms.decayed_step import DecayedStep
from .._transforms.regularization import AddDecayedWeights, ProximalWeightDecay
from .._transforms.scaling import Scale, ScaleByLearningRate
from .chain import Chain

# Rules on single entries. At the end of a chain, XLA fuses them with the sum of a parameter and its update; in the
# rule on stacks, weight decay would copy every parameter into a stack.
_ENTRYWISE = (AddDecayedWeights, DecayedStep, ProximalWeightDecay, Scale)
_ENTRYWISE += (ScaleByLearningRate, ScaleByPath, ScaleByDepth)


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


def acts_on_entries(part: AbstractTransform) -> bool:
    """Whether it is one of the rules on single entries that end a chain."""
    return type(part) in _ENTRYWISE


def _is_entrywise(part: AbstractTransform) -> bool:
    """Whether it is a rule on single entries that has no state."""
    if not acts_on_entries(part) or not isinstance(part, AbstractLeafwise):
        return False
    # A rule with a schedule has a step count in its state, which the rules at the end would not keep.
    return is_empty(jax.eval_shape(part.init_leaf, jax.ShapeDtypeStruct((), jnp.float32)))


class Mapped(NamedTuple):
    """A transform that is mapped over stacks, and the optimizer that is made of it, else the transform itself."""

    transform: AbstractTransform
    written: AbstractTransform


def parts_on_stacks(transform: AbstractTransform) -> Iterator[Mapped]:
    """The transforms that are mapped over stacks, among all in a transform."""
    if isinstance(transform, AbstractOptimizer) and refusal(transform) is None:
        for part in transform.each_part():
            yield from (Mapped(x, transform) for x, _ in parts_on_stacks(part.transform))
    else:
        yield from _all_in(without_end(transform)[0], None)


def _all_in(transform: AbstractTransform, written: AbstractTransform | None) -> Iterator[Mapped]:
    if written is None and isinstance(transform, AbstractOptimizer):
        written = transform
    yield Mapped(transform, written or transform)
    for part in transform.each_part():
        yield from _all_in(part.transform, written)


def refusal(transform: AbstractTransform) -> str | None:
    """Why the transform cannot be mapped over a stack, or None; apart from the transforms inside."""
    cls = type(transform)
    if isinstance(transform, AbstractOptimizer):
        is_its_transform = as_written(cls.update) is as_written(AbstractOptimizer.update)
        return None if is_its_transform else "has an `update` of its own"
    names = cls.__dataclass_fields__
    if rule := next((name for name in names if isinstance(getattr(transform, name), AbstractLabels)), None):
        return f"{_BY}`{rule}`"
    if isinstance(transform, AbstractLeafwise):
        return _refusal_of_rule(transform)
    is_arraywise = isinstance(transform, AbstractContainer) and transform.is_arraywise
    return None if is_arraywise else "may combine arrays, or tell them apart"


def _refusal_of_rule(transform: AbstractLeafwise) -> str | None:
    if reads_all_updates(transform):
        return "looks at all arrays together"
    if trees := [name for name in transform.needs if name in TREES]:
        return f"reads `{trees[0]}`, which has an array for each parameter"
    # Under `vmap`, every row has the same path, so that a rule cannot tell one parameter from another.
    try:
        where = transform.where({"": np.zeros(())})
    except ValueError:  # patterns that match no path
        return "tells arrays apart"
    return None if where is None else "tells arrays apart"


def refused(inner: AbstractTransform, mapped: Mapped, why: str, is_random: bool = False) -> str:
    """The message for what `Stacked` refuses, with a call that trains the same.

    Args:
        inner: what `Stacked` was given.
        mapped: the transform inside it that cannot be mapped over a stack.
        why: the reason.
        is_random: whether everything with a random key is refused.
    """
    start = "`Stacked` updates arrays of one shape together, each as if it were alone, and"
    if type(mapped.transform).__name__.startswith("_"):  # a part without a public name, such as the clip of `Adan`
        return (
            f"{start} a part of the optimizer inside {why}. Leave it out, `max_grad_norm=None` for example, and put a "
            f"transform around `Stacked` in its place, as in `Chain(ClipByGlobalNorm(1.0), Stacked(...))`."
        )
    if why.startswith(_BY) and not hasattr(mapped.written, why.removeprefix(_BY).strip("`")):
        why = "tells arrays apart"
    placed = _placed(inner, is_random)
    advice = f"Put it around `Stacked`, as in `{placed}`." if "Stacked" in placed else "Leave `Stacked` out."
    return f"{start} `{type(mapped.written).__name__}` {why}. {advice}"


_BY = "chooses parameters by "


def drawing(transform: AbstractTransform) -> Mapped:
    """The transform inside that has a random key."""
    found = [x for x in _all_in(transform, None) if _draws(x.transform)]
    return found[-1] if found else Mapped(transform, transform)


def _draws(transform: AbstractTransform) -> bool:
    """Whether a transform, or one inside it, has a random key."""
    return any(map(is_key_data, jtu.tree_leaves(transform)))


def _placed(transform: AbstractTransform, is_random: bool) -> str:
    """A call of a transform in which `Stacked` is around all that it accepts, so that it trains the same."""
    if _is_accepted(transform, is_random):
        return f"Stacked({_call(transform)})"
    parts = [part for part in transform.each_part() if not part.auxiliary]
    if isinstance(transform, AbstractOptimizer) or not parts:
        return _call(transform)
    if type(transform) is Chain:
        return f"Chain({', '.join(_placed_in_turn(parts, is_random))})"
    inside = [_placed(part.transform, is_random) for part in parts]
    if parts[0].key is not None:
        inside = [f"{{{', '.join(f'{part.key!r}: {x}' for part, x in zip(parts, inside, strict=True))}}}"]
    return f"{type(transform).__name__}({', '.join(inside)}, ...)"


def _placed_in_turn(parts: Iterable[Part], is_random: bool) -> Iterator[str]:
    """The calls of the parts of a chain, with one `Stacked` around consecutive ones that it accepts."""
    for is_accepted, group in itertools.groupby(parts, lambda part: _is_accepted(part.transform, is_random)):
        run = [part.transform for part in group]
        if not is_accepted or all(map(_is_entrywise, run)):  # which gain nothing by stacks
            yield from map(_call if is_accepted else functools.partial(_placed, is_random=is_random), run)
        else:
            yield f"Stacked({_call(run[0] if len(run) == 1 else Chain(*run))})"


def _is_accepted(transform: AbstractTransform, is_random: bool) -> bool:
    return not (is_random and _draws(transform)) and all(refusal(x) is None for x, _ in parts_on_stacks(transform))


def _call(transform: AbstractTransform) -> str:
    inside = ", ".join(map(_call, transform.parts.values())) if type(transform) is Chain else "..."
    return f"{type(transform).__name__}({inside})"
