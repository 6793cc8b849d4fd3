"""Named matrix products."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact


def adjoint(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n m"]:
    """The conjugate transpose of each matrix."""
    # `lax`, because `jnp` takes several times longer to trace.
    *batch, rows, columns = range(x.ndim)
    x = jax.lax.transpose(x, (*batch, columns, rows))
    return jax.lax.conj(x) if jnp.iscomplexobj(x) else x


def product(a: Inexact[Array, "*batch m k"], b: Inexact[Array, "*batch k n"]) -> Inexact[Array, "*batch m n"]:
    """The product in full precision: by default, a TPU rounds float32 to bfloat16, and a GPU to TensorFloat-32."""
    precision = jax.lax.Precision.HIGHEST
    if a.dtype != b.dtype or a.shape[:-2] != b.shape[:-2]:
        return jnp.matmul(a, b, precision=precision)
    *batch, rows, columns = range(a.ndim)
    return jax.lax.dot_general(a, b, (((columns,), (rows,)), (batch, batch)), precision=precision)


def gram(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch m m"]:
    r"""The Gram matrix of the rows of each matrix, $X X^{\mathsf H}$."""
    return x @ adjoint(x)


def gram_of_columns(x: Inexact[Array, "*batch m n"]) -> Inexact[Array, "*batch n n"]:
    r"""The Gram matrix of the columns of each matrix, $X^{\mathsf H} X$."""
    return adjoint(x) @ x
