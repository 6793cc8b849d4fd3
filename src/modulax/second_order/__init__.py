"""Second derivatives of a loss, without the matrix that they are in."""

from ._diagonals import fisher_diag as fisher_diag, hessian_diag as hessian_diag, hvp as hvp
