"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

from . import losses_cross_entropy, losses_regression
from ._case import Case as Case, FunctionDifference as FunctionDifference, plain as plain

CASES: tuple[Case, ...] = (
    *losses_cross_entropy.CASES,
    *losses_regression.CASES,
)

FUNCTION_DIFFERENCES: tuple[FunctionDifference, ...] = (
    *losses_cross_entropy.FUNCTION_DIFFERENCES,
    *losses_regression.FUNCTION_DIFFERENCES,
)
