"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

from . import losses_fenchel_young, losses_regression, projections
from ._case import Case as Case, FunctionDifference as FunctionDifference, plain as plain

CASES: tuple[Case, ...] = (*losses_regression.CASES, *losses_fenchel_young.CASES, *projections.CASES)

FUNCTION_DIFFERENCES: tuple[FunctionDifference, ...] = (
    *losses_regression.FUNCTION_DIFFERENCES,
    *losses_fenchel_young.FUNCTION_DIFFERENCES,
    *projections.FUNCTION_DIFFERENCES,
)
