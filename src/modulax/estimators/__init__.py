"""Monte Carlo gradient estimators: gradients of an expectation with respect to the parameters of its distribution."""

from ._control_variates import (
    control_delta_method as control_delta_method,
    control_variates_jacobians as control_variates_jacobians,
    moving_avg_baseline as moving_avg_baseline,
)
from ._gaussian import MultiNormal as MultiNormal, multi_normal as multi_normal
from ._jacobians import (
    measure_valued_jacobians as measure_valued_jacobians,
    pathwise_jacobians as pathwise_jacobians,
    score_function_jacobians as score_function_jacobians,
)
