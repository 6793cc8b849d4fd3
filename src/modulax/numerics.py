"""Arithmetic that is right at the edges, for transforms of your own."""

from ._numerics import (
    abs_sq as abs_sq,
    at_least_float32 as at_least_float32,
    safe_increment as safe_increment,
    safe_sqrt as safe_sqrt,
)
