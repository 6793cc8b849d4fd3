"""The functions of modulax: every public one has cases here, on which `test_functions.py` checks what is promised."""

from ..differences import Difference
from . import (
    estimators,
    linear_algebra,
    losses_contrastive,
    losses_cross_entropy,
    losses_ctc,
    losses_divergences,
    losses_fenchel_young,
    losses_margins,
    losses_ranking,
    losses_regression,
    losses_segmentation,
    numerics,
    projections,
    trees,
)
from ._case import Case as Case, plain as plain

CASES: tuple[Case, ...] = (
    *linear_algebra.CASES,
    *losses_contrastive.CASES,
    *losses_cross_entropy.CASES,
    *losses_ctc.CASES,
    *losses_divergences.CASES,
    *losses_fenchel_young.CASES,
    *losses_margins.CASES,
    *losses_ranking.CASES,
    *losses_regression.CASES,
    *losses_segmentation.CASES,
    *numerics.CASES,
    *projections.CASES,
)

FUNCTION_DIFFERENCES: tuple[Difference, ...] = (
    *estimators.FUNCTION_DIFFERENCES,
    *linear_algebra.FUNCTION_DIFFERENCES,
    *losses_contrastive.FUNCTION_DIFFERENCES,
    *losses_cross_entropy.FUNCTION_DIFFERENCES,
    *losses_ctc.FUNCTION_DIFFERENCES,
    *losses_divergences.FUNCTION_DIFFERENCES,
    *losses_fenchel_young.FUNCTION_DIFFERENCES,
    *losses_margins.FUNCTION_DIFFERENCES,
    *losses_ranking.FUNCTION_DIFFERENCES,
    *losses_regression.FUNCTION_DIFFERENCES,
    *losses_segmentation.FUNCTION_DIFFERENCES,
    *numerics.FUNCTION_DIFFERENCES,
    *projections.FUNCTION_DIFFERENCES,
    *trees.FUNCTION_DIFFERENCES,
)
