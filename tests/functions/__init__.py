"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

from . import losses_regression, numerics, trees
from ._case import Case as Case, FunctionDifference as FunctionDifference, plain as plain

CASES: tuple[Case, ...] = (*losses_regression.CASES, *numerics.CASES)

FUNCTION_DIFFERENCES: tuple[FunctionDifference, ...] = (
    *losses_regression.FUNCTION_DIFFERENCES,
    *numerics.FUNCTION_DIFFERENCES,
    *trees.FUNCTION_DIFFERENCES,
)
