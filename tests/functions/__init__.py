"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

from . import linear_algebra, losses_regression
from ._case import Case as Case, FunctionDifference as FunctionDifference, plain as plain

CASES: tuple[Case, ...] = (*losses_regression.CASES, *linear_algebra.CASES)

FUNCTION_DIFFERENCES: tuple[FunctionDifference, ...] = (
    *losses_regression.FUNCTION_DIFFERENCES,
    *linear_algebra.FUNCTION_DIFFERENCES,
)
