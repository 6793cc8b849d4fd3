"""Estimators have tests of their own; optax's are those that it had before it dropped them."""

from ..differences import Difference

FUNCTION_DIFFERENCES = (
    Difference(
        "`control_variates_jacobians` with a state",
        "subtracts a baseline from before the samples: unbiased",
        "subtracts a baseline that includes the samples: biased; at the first step, "
        "`moving_avg_baseline` cancels a single sample",
        "a baseline must not depend on the sample that it is subtracted from",
        "test_control_variates.py::test_a_baseline_brings_no_bias_even_to_a_single_sample",
    ),
    Difference(
        "`moving_avg_baseline(zero_debias=True)`",
        "the weighted mean of all previous values",
        "applies the bias correction repeatedly: the average of ones is 50 after two steps at a decay of 0.99",
        "the weights must sum to one",
        "test_control_variates.py::test_the_moving_average_is_the_weighted_mean",
    ),
    Difference(
        "`control_variates_jacobians`, the derivative of the control variate with respect to the parameters",
        "per sample",
        "their mean, in every row",
        "the variance over the samples must reflect that of the estimate",
        "test_control_variates.py::test_the_variance_over_the_samples_is_that_of_the_estimate",
    ),
    Difference(
        "`control_variates_jacobians(estimate_cv_coeffs=True)`",
        "the coefficient with minimal variance, independent of units",
        "omits terms of the estimate, and adds 0.001 to the variance in the denominator",
        "rescaling a control variate must not change the result",
        "test_control_variates.py::test_estimated_coefficients_reach_the_optimum",
    ),
    Difference(
        "`measure_valued_jacobians(dist_builder=...)`",
        "any function that returns a `multi_normal`; samples of any shape",
        "`multi_normal` itself; vectors",
        "the chain rule",
        "test_estimators.py::test_what_the_gaussian_is_built_from",
    ),
    Difference(
        "`multi_normal(...).sample`",
        "`sample(shape, seed)`",
        "`sample(shape, key)` in 0.2.8",
        "as the estimators call it, and as in earlier versions of optax",
        "test_estimators.py::test_multi_normal_is_that_of_scipy_and_optax",
    ),
)
