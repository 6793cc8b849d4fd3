"""The Euclidean norm of a vector without overflow or underflow, and division by it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .._plugin.trees import inner, total
from ..numerics import abs_sq

Arrays = list[Inexact[Array, "..."]]


Scalar = Float[Array, ""]


@jax.custom_jvp
@jax.jit
def by_length(vector: Arrays, number: Scalar) -> tuple[Scalar, Arrays, Scalar]:
    """Return the norm of a vector, the vector divided by its norm, and `number` divided by the norm.

    For a zero vector the quotients and all derivatives are zero.
    """
    factor, scaled = _length(vector, number)
    return scaled / factor, *_divided(vector, number, factor, scaled)


@by_length.defjvp
def _by_length_jvp(primals, tangents):
    vector, number = primals
    d_vector, d_number = tangents
    factor, scaled = _length(vector, number)
    unit, quotient = _divided(vector, number, factor, scaled)
    d_length = inner(unit, d_vector).astype(number.dtype)
    d_unit = [dx - u * d_length.astype(u.dtype) for u, dx in zip(unit, d_vector, strict=True)]
    d_quotients = _divided(d_unit, d_number - quotient * d_length, factor, scaled)
    return (scaled / factor, unit, quotient), (d_length, *d_quotients)


def _divided(vector: Arrays, number: Scalar, factor: Scalar, scaled: Scalar) -> tuple[Arrays, Scalar]:
    """Divide the vector and the number by the norm, `scaled / factor`."""
    # One division for the whole vector. The factor and the inverse are each within the range of the dtype.
    inverse = jnp.where(scaled == 0, jnp.zeros_like(scaled), 1 / jnp.where(scaled == 0, jnp.ones_like(scaled), scaled))
    return [x * factor.astype(x.dtype) * inverse.astype(x.dtype) for x in vector], number * factor * inverse


@jax.jit
def _length(vector: Arrays, like: Scalar) -> tuple[Scalar, Scalar]:
    """Return a power of two, and the norm of the vector times that power, computed without overflow or underflow."""
    square = total(abs_sq, vector).astype(like.dtype)
    limits = jnp.finfo(like.dtype)
    # Squares below the smallest normal number are flushed to zero. If the sum exceeds this threshold, losing even one
    # such square per entry changes it by less than a rounding error.
    least = sum(x.size for x in vector) * float(limits.tiny / limits.eps)
    power = 2.0 ** (limits.maxexp * 5 // 8)

    def again():
        factor = jnp.where(square < 1, jnp.full_like(square, power), jnp.full_like(square, 1 / power))
        return factor, jnp.sqrt(total(lambda x: abs_sq(x * factor.astype(x.dtype)), vector).astype(like.dtype))

    is_exact = (square > least) & (square < jnp.inf)
    return jax.lax.cond(is_exact, lambda: (jnp.ones_like(square), jnp.sqrt(square)), again)
