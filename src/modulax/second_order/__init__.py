"""Second-order information about a loss, without forming the Hessian."""

from ._diagonals import fisher_diag as fisher_diag, hessian_diag as hessian_diag, hvp as hvp
