"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

import importlib
import pkgutil

from ..differences import Difference
from ._case import Case as Case, plain as plain

_FILES = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
CASES: tuple[Case, ...] = tuple(case for file in _FILES for case in getattr(file, "CASES", ()))
FUNCTION_DIFFERENCES: tuple[Difference, ...] = tuple(
    difference for file in _FILES for difference in getattr(file, "FUNCTION_DIFFERENCES", ())
)
