"""The places in the tuple of a chain: those of its parts, or of the chain that an optimizer is in optax."""

from collections.abc import Collection, Mapping
from typing import Any

from ._layouts import Form, Theirs
from ._states import CLASSES, EmptyState, WeightDecaySchedule

Slots = Any
"""The places in optax: names of parts here, "-" for no state, "M" for a mask without one, nested tuples of these.

A name with "?" may be absent, and then has no state; of names with "|" one is there.
"""

WITHOUT_RATE = "an optimizer without a learning rate"
_RATE = "scale_by_learning_rate"
_SCHEDULED = {"COCOB": "scale"}  # parts that are called otherwise here
_SLOTS: dict[str, Slots] = {
    "DPSGD": ("differentially_private_aggregate", "trace?", _RATE),
    "DoG": ("add_decayed_weights?", "scale_by_dog", _RATE),
    "DoWG": ("add_decayed_weights?", "scale_by_do_wg", _RATE),
    "LARS": ("M", "M", _RATE, "trace"),
    "MoMo": "scale_by_mo_mo",
    "MoMoAdam": "scale_by_mo_mo_adam",
    "PolyakSGD": (("-", "-"), "-"),
    "RMSProp": ("scale_by_rms|scale_by_stddev", _RATE, "trace?"),
    "SGD": ("trace?", _RATE),
}


def _slots(owner: str, parts: Collection[str]) -> Slots:
    """The places of the chain of an optimizer; those of its parts unless optax has others."""
    if owner == "ScheduleFreeSGD":
        sgd = ("-", _RATE)
        return ("add_decayed_weights", sgd) if "add_decayed_weights" in parts else sgd
    if owner == WITHOUT_RATE:
        return tuple(part for part in parts if part != _RATE)
    return _SLOTS.get(owner, tuple(parts))


def filled(form: Form, states: Mapping[str, Theirs]) -> Theirs:
    """Return the tuple of the states of a chain.

    Args:
        form: whose chain it is, and the step count in the place of a scheduled learning rate.
        states: the states of the parts by name.
    """
    states = dict(states)
    if form.count is not None and (rate := _SCHEDULED.get(form.owner, _RATE)) in states:
        states[rate] = CLASSES["ScaleByScheduleState"](form.count)
        if form.owner == "Fromage":
            states["add_decayed_weights"] = WeightDecaySchedule(form.count)

    def fill(slot: Slots) -> Theirs:
        if isinstance(slot, tuple):
            return tuple(fill(x) for x in slot)
        if slot == "M":
            return CLASSES["MaskedState"](EmptyState())
        return states.get(_part(slot, states), EmptyState())

    return fill(_slots(form.owner, states))


def read(form: Form, theirs: Theirs, parts: Collection[str]) -> dict[str, Theirs] | None:
    """Return the states in the tuple of a chain by name; None if the tuple is another.

    Args:
        form: whose chain it is.
        theirs: the tuple.
        parts: the names of the parts.
    """
    found: dict[str, Theirs] = {}

    def fits(slot: Slots, x: Theirs) -> bool:
        if isinstance(slot, tuple):
            is_like = isinstance(x, (tuple, list)) and not hasattr(x, "_fields") and len(x) == len(slot)
            return is_like and all(fits(inside, y) for inside, y in zip(slot, x, strict=True))
        if (name := _part(slot, parts)) in parts:
            found[name] = x
        return True

    if not fits(_slots(form.owner, parts), theirs):
        return None
    return {name: found.get(name, EmptyState()) for name in parts}


def _part(slot: str, parts: Collection[str]) -> str:
    """The name of the part in a slot."""
    names = slot.removesuffix("?").split("|")
    return next((name for name in names if name in parts), names[0])
