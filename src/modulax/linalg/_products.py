"""Named matrix products."""

import jax.numpy as jnp
from jaxtyping import Array, Inexact


def adjoint(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n m"]:
    """The conjugate transpose of each matrix."""
    return jnp.swapaxes(x, -1, -2).conj()


def gram(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch m m"]:
    r"""The Gram matrix of the rows of each matrix, $X X^{\mathsf H}$."""
    return x @ adjoint(x)


def gram_of_columns(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n n"]:
    r"""The Gram matrix of the columns of each matrix, $X^{\mathsf H} X$."""
    return adjoint(x) @ x
