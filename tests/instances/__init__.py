"""An instance of every public transform and schedule, with its optax counterpart if it has one; a file for each family.

Register every new class here: it inherits every test of `test_contract.py`, and with an optax counterpart those of
`test_parity.py`.
"""

from . import (
    aggregating,
    averaging,
    curves,
    foundation,
    layerwise,
    linesearch,
    matrices,
    mixtures,
    moments,
    precision,
    tuning_free,
    wrappers,
)
from ._instance import Instance as Instance

FAMILIES = (
    foundation,
    moments,
    mixtures,
    layerwise,
    tuning_free,
    matrices,
    linesearch,
    wrappers,
    aggregating,
    averaging,
    precision,
)
TRANSFORMS = tuple(instance for family in FAMILIES for instance in family.TRANSFORMS)
DIFFERENCES = tuple(difference for family in (*FAMILIES, curves) for difference in family.DIFFERENCES)
SCHEDULES = curves.SCHEDULES
EVERYTHING = TRANSFORMS + SCHEDULES + curves.STATEFUL
assert len({i.name for i in EVERYTHING}) == len(EVERYTHING), "two instances have one name"
