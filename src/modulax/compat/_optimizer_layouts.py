"""Layouts of named optimizers: the state of the chain that they are in optax.

Their step count is in the place of the state of a scheduled learning rate, where optax keeps it too. Without a schedule
no step count is needed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .._containers.chain import Chain, ChainState
from .._containers.partition import Partition, PartitionState
from .._containers.schedule_free import ScheduleFree
from .._protocol.optimizer import AbstractOptimizer, OptimizerState
from .._protocol.schedule import is_schedule
from .._protocol.schedule_values import schedule_states, with_current_values
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import no_steps
from ._container_layouts import ChainLayout
from ._layouts import Form, Layout, Theirs, from_optax, has_schedules, lays_out, misfit, received, to_optax
from ._states import CLASSES, EmptyState, ScheduleStates, WeightDecaySchedule

Slots = Any
"""The places of a chain in optax: names of parts here, "-" for no state, "M" for a mask without one, nested tuples.

A name with "?" may be absent, and then has no state; of names with "|" one is there.
"""

_RATE = "scale_by_learning_rate"
_SLOTS: dict[str, Slots] = {
    "DPSGD": ("differentially_private_aggregate", ("trace?", _RATE)),
    "DoG": ("add_decayed_weights?", "scale_by_dog", _RATE),
    "DoWG": ("add_decayed_weights?", "scale_by_do_wg", _RATE),
    "LARS": ("M", "M", _RATE, "trace"),
    "MoMo": "scale_by_mo_mo",
    "MoMoAdam": "scale_by_mo_mo_adam",
    "PolyakSGD": (("-", "-"), "-"),
    "RMSProp": ("scale_by_rms|scale_by_stddev", _RATE, "trace?"),
    "SGD": ("trace?", _RATE),
}


def _slots(t: AbstractTransform, chain: Chain) -> Slots:
    """The places of the chain of an optimizer; those of its parts unless optax has others."""
    if type(t).__name__ == "ScheduleFreeSGD":
        sgd = ("-", _RATE)
        return ("add_decayed_weights", sgd) if "add_decayed_weights" in chain.parts else sgd
    return _SLOTS.get(type(t).__name__, tuple(chain.parts))


@lays_out(AbstractOptimizer)
class OptimizerLayout(Layout):
    """The state of the chain of an optimizer; its step count is in the place of a scheduled learning rate."""

    def out(self, t: AbstractOptimizer, state: OptimizerState, form: Form) -> Theirs:
        """Convert the state of the chain, and put the step count into it."""
        theirs = self._out(t, _transform(t), state.inner, state.step if _follows(t) else None, form)
        if not _counts(t) or (state.schedule_states is None and _count_in(theirs) is not None):
            return theirs
        extra = ScheduleStates(state.step, state.schedule_states)
        return (*theirs, extra) if type(theirs) is tuple else (theirs, extra)

    def _out(self, t: Any, inner: AbstractTransform, state: Any, step: Any, form: Form) -> Theirs:
        """Convert the state of what an optimizer is made of; `step` is its step count if optax keeps it."""
        if isinstance(inner, Chain):
            return self._chain_out(t, inner, state, step, form)
        theirs = to_optax(inner, state, form)
        if isinstance(inner, ScheduleFree):
            base = self._out(t, inner.base_optimizer, state.base_optimizer_state, step, form)
            return theirs._replace(base_optimizer_state=base)
        if isinstance(inner, Partition):
            masked = CLASSES["MaskedState"]
            found = {
                part.key: masked(self._group_out(part.transform, part.state, step, form.chosen(received(part))))
                for part in inner.each_part(state)
            }
            return type(theirs)(found)
        return theirs

    def _group_out(self, t: AbstractTransform, state: Any, step: Any, form: Form) -> Theirs:
        """Convert the state of a group of an optimizer, such as the matrices of Muon, which follows its step count."""
        return self._out(t, _transform(t), state.inner if isinstance(t, AbstractOptimizer) else state, step, form)

    def _chain_out(self, t: Any, chain: Chain, state: ChainState, step: Any, form: Form) -> Theirs:
        states = dict(zip(chain.parts, ChainLayout().out(chain, state, form), strict=True))
        if step is not None and _RATE in states:
            states[_RATE] = CLASSES["ScaleByScheduleState"](step)
            if type(t).__name__ == "Fromage":
                states["add_decayed_weights"] = WeightDecaySchedule(step)

        def fill(slot: Slots) -> Theirs:
            if isinstance(slot, tuple):
                return tuple(fill(x) for x in slot)
            if slot == "M":
                return CLASSES["MaskedState"](EmptyState())
            return states.get(_part(slot, states), EmptyState())

        return fill(_slots(t, chain))

    def back(self, t: AbstractOptimizer, theirs: Theirs, form: Form) -> Any:
        """Convert the state of the chain, and find the step count in it."""
        inner, step, states = _transform(t), no_steps(), None
        if type(theirs) is tuple and theirs and isinstance(theirs[-1], ScheduleStates):
            *rest, (step, states) = theirs
            theirs = tuple(rest) if isinstance(inner, Chain) else rest[0]
        elif _counts(t) and (found := _count_in(theirs)) is not None:
            step = found
        return OptimizerState(step, self._back(t, inner, theirs, form), states)

    def _back(self, t: Any, inner: AbstractTransform, theirs: Theirs, form: Form) -> Any:
        if isinstance(inner, Chain):
            return self._chain_back(t, inner, theirs, form)
        if isinstance(inner, Partition):
            found = {
                part.key: self._group_back(
                    part.transform, theirs.inner_states[part.key].inner_state, form.chosen(received(part))
                )
                for part in inner.each_part()
            }
            return PartitionState(type(inner.transforms)(found))
        if isinstance(inner, ScheduleFree):
            base = self._back(t, inner.base_optimizer, theirs.base_optimizer_state, form)
            theirs = theirs._replace(base_optimizer_state=base)
        return from_optax(inner, theirs, form)

    def _group_back(self, t: AbstractTransform, theirs: Theirs, form: Form) -> Any:
        state = self._back(t, _transform(t), theirs, form)
        return OptimizerState(no_steps(), state, None) if isinstance(t, AbstractOptimizer) else state

    def _chain_back(self, t: Any, chain: Chain, theirs: Theirs, form: Form) -> ChainState:
        found: dict[str, Theirs] = {}

        def read(slot: Slots, x: Theirs) -> None:
            if isinstance(slot, tuple):
                if not isinstance(x, (tuple, list)) or len(x) != len(slot):
                    raise misfit(t, theirs)
                for inside, y in zip(slot, x, strict=True):
                    read(inside, y)
            elif (name := _part(slot, chain.parts)) in chain.parts:
                found[name] = x

        read(_slots(t, chain), theirs)
        found |= {name: EmptyState() for name in chain.parts if name not in found or _is_count(found[name])}
        return ChainState({name: from_optax(x, found[name], form) for name, x in chain.parts.items()})


def _transform(t: AbstractTransform) -> AbstractTransform:
    """What an optimizer is made of, with numbers in the place of schedules; anything else is returned unchanged."""
    if not isinstance(t, AbstractOptimizer):
        return t
    return with_current_values(t, no_steps(), schedule_states(t)).transform()


def _follows(t: AbstractOptimizer) -> bool:
    """Whether optax has a schedule for the learning rate."""
    return is_schedule(getattr(t, "learning_rate", None)) or getattr(t, "warmup_steps", None) is not None


def _counts(t: AbstractOptimizer) -> bool:
    """Whether the step count of an optimizer matters."""
    return has_schedules(t) or _follows(t)


def _part(slot: str, parts: Mapping[str, Any]) -> str:
    """The name of the part in a slot."""
    names = slot.removesuffix("?").split("|")
    return next((name for name in names if name in parts), names[0])


def _is_count(theirs: Theirs) -> bool:
    """Whether this is the state of a schedule, which has none here."""
    return type(theirs).__name__ in ("ScaleByScheduleState", "WeightDecaySchedule")


def _count_in(theirs: Theirs) -> Any:
    """The step count in a state of an optimizer: that of its schedule, or else any other."""
    nodes = list(_rules_in(theirs))
    schedules = [x.count for x in nodes if _is_count(x)]
    counts = [x.count for x in nodes if "count" in getattr(x, "_fields", ())]
    return next(iter([*schedules, *counts]), None)


def _rules_in(theirs: Theirs) -> Iterator[Theirs]:
    """The states in one that take every step with it."""
    if type(theirs) in (tuple, list):
        for x in theirs:
            yield from _rules_in(x)
    elif hasattr(theirs, "inner_states"):
        for x in theirs.inner_states.values():
            yield from _rules_in(x.inner_state)
    elif hasattr(theirs, "base_optimizer_state") and "count" not in theirs._fields:
        yield from _rules_in(theirs.base_optimizer_state)
    else:
        yield theirs
