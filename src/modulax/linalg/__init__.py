"""Linear algebra for accelerators: iterative methods built on matrix products, where decompositions are slow."""

from ._eigenbasis import eigenbasis as eigenbasis, outer_product as outer_product
from ._inverse_root import inverse_root as inverse_root, matrix_inverse_pth_root as matrix_inverse_pth_root
from ._newton_schulz import orthogonalize as orthogonalize
from ._nnls import nnls as nnls
from ._power_iteration import power_iteration as power_iteration
from ._singular import leading_directions as leading_directions
