"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised.

The rows of `differences.tsv` are the deliberate differences from optax's functions.
"""

import importlib
import pkgutil
from pathlib import Path

from ..differences import Difference
from ._case import Case as Case, plain as plain

_FILES = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
CASES: tuple[Case, ...] = tuple(case for file in _FILES for case in getattr(file, "CASES", ()))
_ROWS = Path(__file__).with_name("differences.tsv").read_text(encoding="utf-8").splitlines()[1:]
FUNCTION_DIFFERENCES = tuple(Difference(*row.split("\t")) for row in _ROWS)
