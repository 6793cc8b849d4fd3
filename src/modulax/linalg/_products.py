"""Products of matrices that have names."""

import jax.numpy as jnp
from jaxtyping import Array, Inexact


def adjoint(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n m"]:
    """The transpose of each matrix, conjugated where it is complex."""
    return jnp.swapaxes(x, -1, -2).conj()


def gram(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch m m"]:
    """The products of the rows of each matrix with one another."""
    return x @ adjoint(x)
