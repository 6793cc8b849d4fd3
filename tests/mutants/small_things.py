"""Faults in what saves users a few lines: arithmetic on schedules, masks by pattern and by class, names, pairs."""

from ._mutant import Mutant

ARITHMETIC = "tests/test_schedule_arithmetic.py"

MUTANTS = (
    # --- arithmetic on schedules
    Mutant(
        "a-number-minus-a-schedule-is-the-schedule-minus-the-number",
        "schedule arithmetic",
        "_protocol/schedule.py",
        'return _expression("-", other, self)',
        'return _expression("-", self, other)',
        (f"{ARITHMETIC} -k values",),
    ),
    Mutant(
        "an-expression-prints-without-the-parentheses-on-its-right",
        "schedule arithmetic",
        "_protocol/schedule.py",
        "operand(self.right, own + 1)",
        "operand(self.right, own)",
        (f"{ARITHMETIC} -k prints",),
    ),
    Mutant(
        "numpy-numbers-take-a-schedule-for-an-object-array",
        "schedule arithmetic",
        "_protocol/schedule.py",
        "    __array_ufunc__: ClassVar[None] = None  # NumPy numbers leave `number * schedule` to the schedule\n",
        "",
        (ARITHMETIC,),
    ),
)
