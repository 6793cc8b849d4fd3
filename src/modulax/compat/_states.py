"""The state classes of optax, NamedTuples, made from the states here whose `optax_fields` say what they correspond to.

A class has optax's name, its fields and their order. What a state here holds beyond these is computed from them, or is
in a class of its own.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

from .. import aggregate as _aggregate, states as _states
from .._catalog._plugin import fields_in_optax, home
from .._plugin.states import with_subclasses
from ..authoring import AbstractState
from ._names import NAMES

_DEFINED = (_states, _aggregate)  # imported, so that all states are known below


class EmptyState(NamedTuple):
    """State of a stateless transform."""


class MaskedNode(NamedTuple):
    """In the place of a leaf that is masked out."""


class WeightDecaySchedule(NamedTuple):
    """State of the scheduled weight decay of `fromage`: step count."""

    count: Any


class WrappedScheduleState(NamedTuple):
    """State of a schedule that counts its steps."""

    count: Any


class SplitRealAndImaginaryArrays(NamedTuple):
    """The real and the imaginary part of a complex array."""

    real: Any
    imaginary: Any


class MuonDimensionNumbers(NamedTuple):
    """Which axes of an array are the rows of a matrix, and which are its columns, for `muon`."""

    reduction_axis: Any = 0
    output_axis: Any = 1


class GaLoreDimensionNumbers(NamedTuple):
    """Which axes of an array are the rows of a matrix, and which are its columns, for `galore`."""

    reduction_axis: Any = 0
    output_axis: Any = 1


class LookaheadParams(NamedTuple):
    """The fast and the slow parameters of `lookahead`."""

    fast: Any
    slow: Any

    @classmethod
    def init_synced(cls, params: Any) -> "LookaheadParams":
        """Return a pair of the parameters and of a reference to them."""
        return cls(params, params)


class ScheduleStates(NamedTuple):
    """The step count and the states of stateful schedules of an optimizer, last in its state. optax has no such state.

    It is there for hyperparameters whose schedule counts steps that no other part of the state counts.
    """

    count: Any
    schedule_states: Any = None


class Twin(NamedTuple):
    """A state class here with the one in optax.

    Attributes:
        ours: the class here.
        fields: its fields by the names in optax, those of optax first. A field that it does not have is a
            hyperparameter here.
    """

    ours: type[AbstractState]
    fields: dict[str, str]


# States whose names in optax `home` doesn't know, because two share a class there, or it is not called a state.
_SHARED = {
    "ApplyEveryState": "ApplyEvery",
    "ScaleByACPropState": "ScaleByBeliefState",
    "ScaleByADOPTState": "ScaleByAdamState",
}
# A field that only some states have: for them optax has a class of its own, or else there is one here.
_VARIANTS = {
    "LookaheadState": ("slow", "LookaheadWithSlowState"),
    "MechanicState": ("delta", "MechanicWithDeltaState"),
    "MultiStepsState": ("noise", "MultiStepsWithNoiseState"),
    "ScaleByRStdDevState": ("count", "ScaleByRStdDevWithCountState"),
    "ScaleByRmsState": ("count", "ScaleByRmsWithCountState"),
}
# Fields here that take the place of some in optax.
_OTHERWISE = {
    "InjectStatefulHyperparamsState": {"hyperparameters"},
    "ScaleByLBFGSState": {"skipped"},
    "ScaleByOptimisticGradientState": {"count"},
    "ScheduleFreeState": {"x"},
}
# Defaults of the last fields.
_DEFAULTS = {"MultiStepsState": ((),)}
# The classes here by the names of optax, of which several may be one class.
_HOMES = {name: home(name) for names in NAMES.values() for name in names if name.endswith("State")}
_FIXED = (
    *(EmptyState, GaLoreDimensionNumbers, LookaheadParams, MaskedNode, MuonDimensionNumbers, ScheduleStates),
    SplitRealAndImaginaryArrays,
    *(WeightDecaySchedule, WrappedScheduleState),
)


def _class(name: str, fields: dict[str, str], doc: str | None) -> type:
    made = collections.namedtuple(name, fields, defaults=_DEFAULTS.get(name, ()), module=__name__)
    made.__doc__ = doc
    return made


def _fields(ours: type[AbstractState], name: str) -> dict[str, str]:
    known = dict(fields_in_optax(ours) or {})
    without = {*known.values(), *_OTHERWISE.get(name, ()), *_VARIANTS.get(name, ())[:1]}
    return known | {field.name: field.name for field in dataclasses.fields(ours) if field.name not in without}


def _names() -> dict[str, str]:
    """The names in optax by the names here; of two for one class, the current one."""
    found = {path.rpartition(".")[2]: name for name, path in _HOMES.items() if path is not None}
    return found | _SHARED


def _made() -> tuple[dict[str, type], dict[str, Twin], dict[type, type]]:
    """The classes by name, their twins by the name of the class, and the classes by the one here."""
    classes: dict[str, type] = {cls.__name__: cls for cls in _FIXED}
    twins: dict[str, Twin] = {}
    by_ours: dict[type, type] = {}
    names = _names()
    for ours in with_subclasses(AbstractState):
        if fields_in_optax(ours) is None or not ours.__module__.startswith("modulax."):
            continue
        name = names.get(ours.__name__, ours.__name__)  # in a private module of optax, under the same name
        if name not in classes:
            fields = _fields(ours, name)
            classes[name] = _class(name, fields, ours.__doc__)
            twins[name] = Twin(ours, fields)
        by_ours[ours] = classes[name]
        if name in _VARIANTS:
            further, variant = _VARIANTS[name]
            fields = {further: further, **twins[name].fields}
            if further != "count":
                fields[further] = fields.pop(further)
            classes[variant], twins[variant] = _class(variant, fields, ours.__doc__), Twin(ours, fields)
    old = {x: x for x in ("count", "hyperparams", "inner_state")}
    classes["InjectHyperparamsState"] = _class("InjectHyperparamsState", old, "The older form of the state.")
    return classes, twins, by_ours


CLASSES, TWINS, _BY_OURS = _made()
globals().update(CLASSES)  # by which pickle finds them
CLASSES["MultiTransformState"] = CLASSES["PartitionState"]
CLASSES |= {name: EmptyState for name, path in _HOMES.items() if path == "EmptyState"}

_COUNTED = {name: {x.metadata.get("counts") for x in dataclasses.fields(twin.ours)} for name, twin in TWINS.items()}
OTHER_COUNTS = [name for name, counted in _COUNTED.items() if "other" in counted]
"""The classes of which `count` is not the number of steps."""


def class_of(state: AbstractState, counted: bool = False) -> type | None:
    """The class of optax for a state here; None if there is none.

    Args:
        state: the state.
        counted: whether it is the one with a step count, where optax has two.
    """
    found = _BY_OURS.get(type(state))
    if found is None or found.__name__ not in _VARIANTS:
        return found
    further, variant = _VARIANTS[found.__name__]
    has_it = counted if further == "count" else getattr(state, further) is not None
    return CLASSES[variant] if has_it else found


def is_named(x: Any, *names: str) -> bool:
    """Whether this is a NamedTuple of optax with one of these names: of the class here, or of optax's own."""
    return isinstance(x, tuple) and type(x).__name__ in names and hasattr(x, "_fields")


def is_state(x: Any) -> bool:
    """Whether this is a state that has a counterpart here, of the class here or of optax's own."""
    return is_named(x, *TWINS)
