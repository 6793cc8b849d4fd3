"""Linear algebra on matrices and batches of them, for accelerators: products where a decomposition would be slow."""

from ._newton_schulz import orthogonalize as orthogonalize
from ._singular import leading_directions as leading_directions
