"""Random keys as plain uint32 arrays, in the fields and states of transforms."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# The random number generator, by the length of its raw key data.
# Raw key data does not say which generator it belongs to; its length does.
_GENERATORS = {2: "threefry2x32", 4: "rbg"}


def is_key_data(x: Any) -> bool:
    """Whether `x` is raw key data, or a batch of it: the only leaf of a transform that is not a hyperparameter."""
    return getattr(x, "dtype", None) == np.uint32 and x.shape[-1:] in {(length,) for length in _GENERATORS}


def is_typed_key(x: Any) -> bool:
    """Whether `x` is an array of keys as `jax.random.key` makes them."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def as_key(x: Any) -> Any:
    """Convert a seed or a JAX key to raw key data: a uint32 array, which any checkpoint format can hold.

    A Python integer is converted with NumPy, to the data of `jax.random.key(seed)` for JAX's default generator, so that
    no backend is started. Raw key data, or a batch of it, is returned unchanged.

    Raises:
        ValueError: if `x` is none of these.
    """
    if is_key_data(x):
        return x
    if is_typed_key(x):
        return jax.random.key_data(x)
    if isinstance(x, jax.Array) and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer):
        # The generator of a Python seed, whatever `jax_default_prng_impl` is.
        return jax.random.key_data(jax.random.key(x, impl="threefry2x32"))
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        seed = operator.index(x) % 2**64
        # With NumPy, because `jax.random.key` would start a backend when a module with such a default is imported.
        key = np.array([seed >> 32, seed % 2**32], np.uint32)
        key.setflags(write=False)
        return key
    raise ValueError(f"`key` must be a seed such as `0`, or a key such as `jax.random.key(0)`, got {x!r}.")


def key(default: int = 0) -> Any:
    """Declare a field for a random key: accepts a seed or a JAX key, stores raw key data."""
    return eqx.field(default=default, converter=as_key, metadata={"key": True})


def next_keys(raw: Array, n: int) -> tuple[Array, list[Array]]:
    """Split raw key data into new key data for the state and `n` keys to use now, one per leaf."""
    kept, used = jax.random.split(jax.random.wrap_key_data(raw, impl=_GENERATORS[raw.shape[-1]]))
    return jax.random.key_data(kept), list(jax.random.split(used, n)) if n else []
