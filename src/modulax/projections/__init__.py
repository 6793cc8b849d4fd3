"""Euclidean projections: the nearest point of a convex set, or of a sphere, for arrays and pytrees."""

from ._boxes import (
    projection_box as projection_box,
    projection_hypercube as projection_hypercube,
    projection_linf_ball as projection_linf_ball,
    projection_non_negative as projection_non_negative,
)
from ._planes import (
    projection_halfspace as projection_halfspace,
    projection_hyperplane as projection_hyperplane,
    projection_vector as projection_vector,
)
from ._simplex import (
    projection_l1_ball as projection_l1_ball,
    projection_l1_sphere as projection_l1_sphere,
    projection_simplex as projection_simplex,
)
from ._spheres import projection_l2_ball as projection_l2_ball, projection_l2_sphere as projection_l2_sphere
