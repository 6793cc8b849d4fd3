"""What several losses are made of, right also where there is nothing: no length, no terms, nothing to count."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._arrays import chosen
from .._numerics import ratio, safe_sqrt


def unit(x: Array, axes: tuple[int, ...], epsilon: Array | float = 0.0) -> Array:
    """The vector divided by its length, or by the least length; zero if that is zero."""
    # Divided by its largest entry first, so that no square overflows or vanishes. The result does not depend on it.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    largest = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    x = x / largest
    length = jnp.maximum(safe_sqrt(jnp.sum(x**2, axes, keepdims=True)), epsilon / largest)
    is_zero = length == 0
    return jnp.where(is_zero, jnp.zeros_like(x), x / jnp.where(is_zero, jnp.ones_like(length), length))


def log_sum_exp(x: Array) -> Array:
    r"""$\log \sum_i e^{x_i}$ along the last axis, which stays; minus infinity, with derivatives of zero, if all are."""
    largest = jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True, initial=-jnp.inf))
    largest = jnp.where(jnp.isfinite(largest), largest, jnp.zeros_like(largest))
    total = jnp.sum(jnp.exp(x - largest), -1, keepdims=True)
    is_zero = total == 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, jnp.ones_like(total), total)) + largest)


def mean(x: Array, where: Bool[Array, "..."] | None = None) -> Array:
    """The mean of all that counts; of nothing it is zero."""
    return ratio(jnp.sum(chosen(where, x)), jnp.sum(jnp.ones_like(x), where=where))
