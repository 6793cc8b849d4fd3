"""`check`: what an optimizer would do to a model that was probably not meant."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .. import Part, Roles
from .._plugin.containers import is_chain
from .._plugin.labels import AbstractLabels, model_of, read_by_role, select, table_of, with_roles
from .._plugin.messages import explained, html_table, listing
from .._plugin.transforms import AbstractHyperparameters, check_optimizer, everything_in, known_values, largest
from .._plugin.trees import shapes_of
from ..authoring import AbstractContainer, AbstractOptimizer, AbstractTransform
from .describe import FROZEN, NO_HEAD, NO_LEAF_DECAYS, Description, describe
from .likely_mistakes import lost_steps, trained_hyperparameters, warnings_in, wrong_numbers
from .rates import is_of_library, parts_over_run


class Findings(tuple[str, ...]):
    """What `check` found: a tuple of sentences, printed one per line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"* {sentence}" for sentence in self) or "nothing found"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table((), (), notes=self or ("nothing found",))


@explained
def check(optimizer: AbstractTransform, model: Any) -> Findings:
    """Look for settings that would silently train something other than what you meant, without running a step.

        print(check(optimizer, model))
        assert not check(optimizer, model)

    It finds: updates in the direction of the gradient, or of parameters that no optimizer is applied to; two optimizers
    in one chain; an average of parameters, such as that of `ScheduleFreeAdamW`, or master weights before a clip or a
    multiplier; a clip after an optimizer; a `Freeze` before weight decay, or of nothing; a weight decay of no leaf, of
    gains but no matrix, or of all biases and gains, one that is negative, removes a hundredth of the weights in each
    step, or was passed as `b1`; a `b1` above `b2`; nothing to train; arrays that Muon mistakes for matrices, a model
    without a head, and AdamW's learning rate beside Muon's; learning rates above 1, below 0 or NaN, also of schedules;
    steps that a low precision rounds away; and an optimizer in the model, which would be trained. `init` warns of some
    of them.

    Args:
        optimizer: any transform.
        model: the model, or its parameters; shapes are enough.

    Returns:
        sentences on what was found, each of which says what to write; empty if nothing was.
    """
    check_optimizer("check(optimizer, model)", optimizer, model)
    seen = model_of(model)
    optimizer = with_roles(optimizer, lambda given: table_of(seen, given))
    shown, tree = describe(optimizer, seen.params), shapes_of(seen.params)
    has_given = any(getattr(labels, "is_given", False) for labels in read_by_role(optimizer))
    is_beside = any(hasattr(x, "adam_learning_rate") for x in everything_in(optimizer))  # the head is AdamW's
    found = [
        *_ascent(optimizer, shown, tree),
        *_all_frozen(shown),
        *_idle_groups(optimizer, tree),
        *wrong_numbers(optimizer, in_check=True),
        *_two_rates(optimizer),
        *_misplaced_numbers(optimizer),
        *trained_hyperparameters(seen.params),
        *warnings_in(optimizer, tree, in_check=True),
        *lost_steps(optimizer, tree),
        *_heavy_decay(optimizer),
        *(note for note in shown.notes if note.startswith(NO_HEAD) and is_beside and not has_given),
        *(note for note in shown.notes if note.startswith(NO_LEAF_DECAYS)),
        *_decay(optimizer, shown, tree, table_of(seen, {})),
    ]
    return Findings(dict.fromkeys(found))


def _ascent(optimizer: AbstractTransform, shown: Description, tree: PyTree) -> Iterator[str]:
    """A sentence if the updates have the sign of the gradients, and the signs of all parts of a chain are known."""
    turns = _turns(_routes(optimizer, tree))
    for last in dict.fromkeys(turn.last for turn in turns if turn.sign > 0 and turn.last):
        yield (
            f"the updates have the direction of the gradients after `{last}`, and `apply_updates` adds them, so the "
            f"loss grows, which is right only to maximize. Optimizers such as `AdamW(rate)` negate the gradients "
            f"themselves. After a direction such as `ScaleByAdam()`, write `ScaleByLearningRate(rate)`, which negates, "
            f"in place of `Scale(rate)`."
        )
    if any(turn.sign < 0 for turn in turns):  # else it is a part of an optimizer, such as a clip
        yield from _passed_through(shown, turns)


def _passed_through(shown: Description, turns: Sequence["_Turn"]) -> Iterator[str]:
    """A sentence if gradients go through without an optimizer."""
    rows = zip(shown.leaves, turns, strict=True)
    if passed := [row.path for row, turn in rows if turn == _Turn(1.0, "") and row.group != FROZEN]:
        yield (
            f"no optimizer is applied to {listing(passed, 3)}: the gradients pass through, and `apply_updates` adds "
            f'them, so the loss grows. To freeze these parameters, write `Masked(..., otherwise="zero")` or '
            f"`selective_transform`; to train them, a `Partition` with an optimizer for each group."
        )


def _all_frozen(shown: Description) -> Iterator[str]:
    """A sentence if nothing would be trained."""
    if shown.leaves and all(row.group == FROZEN for row in shown.leaves):
        yield "every parameter is frozen, so nothing is trained: the mask of what is frozen is True everywhere."


def _idle_groups(optimizer: AbstractTransform, tree: PyTree) -> Iterator[str]:
    """A sentence for each group of a `Partition` without a leaf, except in an optimizer of the library."""
    if isinstance(optimizer, AbstractOptimizer) and is_of_library(optimizer):
        return
    for part in parts_over_run(optimizer):
        with contextlib.suppress(ValueError):  # inside `Flatten`, patterns are for the paths of other arrays
            seen = part._received(tree)
            if hasattr(optimizer, "groups") and seen and not any(seen):
                yield f"no leaf has the label {part.key!r} of `{type(optimizer).__name__}`: its transform does nothing."
            yield from _idle_groups(part.transform, select(tree, seen))


class _Turn(NamedTuple):
    """By what sign a route multiplies the gradients, 0 if that is unknown, and its last part that has a sign."""

    sign: float
    last: str


def _turns(routes: Sequence[tuple["_Step", ...]]) -> list[_Turn]:
    of_each = {route: _turn(route) for route in set(routes)}  # most leaves go the same way
    return [of_each[route] for route in routes]


def _turn(route: tuple["_Step", ...]) -> _Turn:
    unknown = _Turn(0.0, "")
    if sum(isinstance(step.part, AbstractOptimizer) for step in route) > 1:  # which is a mistake of its own
        return unknown
    sign, last = 1.0, ""
    for step in route:
        part, signs = step.part, _signs_of(step.part, step.tree)
        # A line search or a container may turn the updates; weight decay doesn't.
        if isinstance(part, AbstractContainer) or set(part.needs) - {"params"} or None in signs or len(signs) > 1:
            return unknown
        for of_part in signs:
            sign, last = sign * (of_part or 1.0), type(part).__name__
    return _Turn(sign, last)


def _signs_of(part: AbstractTransform, tree: PyTree) -> set[float | None]:
    """The signs by which a part multiplies updates, None for one that is unknown; empty if it keeps their scale."""
    if part._negates:  # `wrong_numbers` finds a negative learning rate
        return {-1.0}
    rate = getattr(part, "learning_rate", None)
    flips = getattr(part, "flip_sign", None)
    if flips is not None:
        return {(_sign(rate) or 1.0) * (-1.0 if flips else 1.0)}
    if not _is_of_modulax(part) or rate is not None or part._why_last:
        return {None}
    return {_sign(x) for x in part._effect(tree).factors or ()}


def _is_of_modulax(part: AbstractTransform) -> bool:
    """Whether it is a rule of the library, and none that a user, or another library, wrote as a class or a function."""
    values = (getattr(part, field.name) for field in dataclasses.fields(part))
    has_function = any(callable(x) and not isinstance(x, (AbstractHyperparameters, AbstractLabels)) for x in values)
    return type(part).__module__.startswith(("modulax._rules.", "modulax._transforms.")) and not has_function


def _sign(x: Any) -> float | None:
    """The sign of a number, or of the first value of a schedule that is not zero; None if it is not known."""
    values = known_values(x)
    signs = [] if values is None else np.sign(values[values != 0])
    return float(signs[0]) if len(signs) else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    """A transform, and the parameters that it receives."""

    part: AbstractTransform
    tree: PyTree


def _routes(transform: AbstractTransform, tree: PyTree) -> list[tuple[_Step, ...]]:
    """The transforms that the updates of each leaf go through, in turn."""
    whole = [(_Step(transform, tree),)] * len(jtu.tree_leaves(tree))
    parts = [part for part in parts_over_run(transform) if not part.auxiliary]
    if is_chain(transform) or (parts and all(part.receives is not None for part in parts)):
        return _routes_through(parts, tree)
    is_own = isinstance(transform, AbstractOptimizer) and not is_of_library(transform)
    if not is_own and not _hands_on(transform):
        return whole
    try:
        routes = _routes_through(parts, tree)
        turns = _turns(routes)
    except ValueError:
        return whole  # inside `Flatten`, patterns are for the paths of other arrays
    # An optimizer negates, if what it is made of doesn't show something else.
    return [x if is_own and not turn.sign else route for route, turn, x in zip(routes, turns, whole, strict=True)]


def _hands_on(transform: AbstractTransform) -> bool:
    """Whether the updates go on from one part of a container to the next."""
    return isinstance(transform, AbstractContainer) and transform._keeps != "nothing"


def _routes_through(parts: Sequence[Part], tree: PyTree) -> list[tuple[_Step, ...]]:
    routes: list[tuple[_Step, ...]] = [()] * len(jtu.tree_leaves(tree))
    for part in parts:
        seen = part._received(tree)
        further = iter(_routes(part.transform, select(tree, seen)))
        routes = [(*route, *next(further)) if here else route for route, here in zip(routes, seen, strict=True)]
    return routes


def _two_rates(optimizer: AbstractTransform) -> Iterator[str]:
    """A sentence for each `ScheduleFree` whose learning rate is not that of its base optimizer."""
    for transform in everything_in(optimizer):
        base = getattr(transform, "base_optimizer", None)
        own, inner = (getattr(x, "learning_rate", None) for x in (transform, base))
        is_known = isinstance(base, AbstractOptimizer) and all(isinstance(x, (float, np.ndarray)) for x in (own, inner))
        if is_known and np.any(own != inner):
            yield (
                f"the learning rate of `{type(transform).__name__}` is {own:.4g}, and that of the "
                f"`{type(base).__name__}` in it {inner:.4g}. It is the same rate again: write both, "
                f'`replace(**{{"*.learning_rate": ...}})`.'
            )


def _misplaced_numbers(optimizer: AbstractTransform) -> Iterator[str]:
    """A sentence for each optimizer that was given its weight decay in the place of `b1`, or `b1` for `b2`."""
    for transform in everything_in(optimizer):
        names = [field.name for field in dataclasses.fields(transform)]
        if isinstance(transform, AbstractOptimizer) and names[1:2] == ["b1"] and {"b2", "weight_decay"} <= {*names}:
            name, b1, b2 = type(transform).__name__, *(largest(getattr(transform, x)) or 0.0 for x in ("b1", "b2"))
            if 0 < b1 < 0.5 and b2 > 0.9:
                yield f"the second argument of `{name}` is `b1`, here {b1:.4g}: did you mean `weight_decay={b1:.4g}`?"
            elif b1 > b2 > 0:
                yield f"`b1` of `{name}`, {b1:.4g}, is above `b2`, {b2:.4g}: were they swapped?"


def _heavy_decay(optimizer: AbstractTransform) -> Iterator[str]:
    """A sentence for each weight decay, before a learning rate, that takes much of the weights in every step."""
    parts = [part.transform for part in parts_over_run(optimizer)]
    for decay, rate in itertools.pairwise(parts):
        if hasattr(decay, "weight_decay") and hasattr(rate, "flip_sign") and not hasattr(decay, "trust_coefficient"):
            peak, most = largest(rate.learning_rate), largest(decay.weight_decay)
            if peak and most and 0.01 < peak * most < np.inf:  # which halves a weight in 70 steps
                what = f"the learning rate {peak:.4g} times the weight decay {most:.4g}"
                yield f"{what} is taken from the weights in each step. Products below 0.001 are usual."
    for part in parts:
        yield from _heavy_decay(part)


def _exclusions(transform: AbstractTransform) -> Iterator[str]:
    """What leaves biases out of weight decay; what an optimizer is made of has no argument of its own."""
    if hasattr(transform, "adam_weight_decay"):  # the mask of `Muon` is for matrices
        yield "`adam_weight_decay=0.0`"
    elif hasattr(transform, "mask"):
        yield "`mask=decays`"
    elif not isinstance(transform, AbstractOptimizer):
        for part in transform.each_part():
            yield from _exclusions(part.transform)


def _decay(optimizer: AbstractTransform, shown: Description, tree: PyTree, roles: Roles) -> Iterator[str]:
    """A sentence if weight decay reaches gains and no matrix, or all biases and gains."""
    decaying = {row.path for row in shown.leaves if row.weight_decay not in ("", "0.0")}
    is_vector = [role.kind in ("bias", "gain") for _, role in roles.items()]
    vectors = list(itertools.compress(roles, is_vector))
    reached = [path for path in vectors if path in decaying]
    if reached == vectors:
        if remedies := dict.fromkeys(_remedies(optimizer, tree, is_vector)):
            yield (
                f"weight decay reaches all biases and gains, {listing(vectors, 3)}. Most recipes leave them out: "
                f"{' and '.join(remedies)}."
            )
    elif reached and (matrices := [x in decaying for x, role in roles.items() if role.is_linear]) and not any(matrices):
        yield f"weight decay reaches {listing(reached, 3)} and no matrix. Write `mask=decays` for the other way round."


def _remedies(optimizer: AbstractTransform, tree: PyTree, where: Sequence[bool]) -> Iterator[str]:
    """What leaves some leaves out of weight decay, in the transforms that they go through."""
    for route in itertools.compress(_routes(optimizer, tree), where):
        for step in route:
            yield from _exclusions(step.part)
