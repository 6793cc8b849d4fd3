"""Numerically safe arithmetic, and branches that stay branches in a batch, for your own transforms and losses."""

from .._support.arithmetic import (
    abs_sq as abs_sq,
    at_least_float32 as at_least_float32,
    safe_increment as safe_increment,
    safe_sqrt as safe_sqrt,
)
from .._support.varying import cond as cond
from ._gradients import scale_gradient as scale_gradient
from ._norms import safe_norm as safe_norm, safe_root_mean_squares as safe_root_mean_squares
