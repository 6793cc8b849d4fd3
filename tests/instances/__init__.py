"""An instance of every public transform and schedule, with its twin in optax if it has one; a file for each family.

Whoever writes a class registers it here and inherits every test of `test_contract.py`; with a twin,
those of `test_parity.py` too.
"""

from . import curves, foundation, tuning_free
from ._instance import Instance as Instance

TRANSFORMS = foundation.TRANSFORMS + tuning_free.TRANSFORMS
SCHEDULES = curves.SCHEDULES
EVERYTHING = TRANSFORMS + SCHEDULES
assert len({i.name for i in EVERYTHING}) == len(EVERYTHING), "two instances have one name"
