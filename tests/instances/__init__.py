"""An instance of every public transform and schedule, with its optax counterpart if it has one; a file for each family.

Register every new class here: it inherits every test of `test_contract.py`, and with an optax counterpart those of
`test_parity.py`.
"""

import importlib
import re

import modulax as mx

from ..differences import DIFFERENCES as DIFFERENCES
from . import curves
from ._instance import Instance as Instance

_NAMES = ("foundation", "moments", "mixtures", "layerwise", "tuning_free", "matrices", "linesearch", "wrappers")
_NAMES += ("first_order", "curvature", "around", "aggregating", "averaging", "precision")
FAMILIES = [importlib.import_module(f"{__name__}.{name}") for name in _NAMES]
TRANSFORMS = tuple(instance for family in FAMILIES for instance in family.TRANSFORMS)
SCHEDULES = curves.SCHEDULES
EVERYTHING = TRANSFORMS + SCHEDULES + curves.STATEFUL


def firsts(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The first instance of each class, by its name: nothing is built."""
    return tuple({re.split(r"[-(]", instance.name)[0]: instance for instance in reversed(instances)}.values())[::-1]


FIRSTS = firsts(TRANSFORMS)
OPTIMIZERS = {mx.get(name).__name__ for name in mx.available()}
RULES = tuple(instance for instance in FIRSTS if instance.name not in OPTIMIZERS)  # which optimizers are chains of
assert len({i.name for i in EVERYTHING}) == len(EVERYTHING), "two instances have one name"
