"""Random keys as plain arrays, in the fields and in the states of transforms."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# The generator that raw key data of this length is for.
_GENERATORS = {2: "threefry2x32", 4: "rbg"}


def is_key_data(x: Any) -> bool:
    """Whether `x` is raw key data, or a batch of it: the one leaf of a transform that is no number."""
    return getattr(x, "dtype", None) == np.uint32 and x.shape[-1:] in {(length,) for length in _GENERATORS}


def as_key(x: Any) -> Any:
    """A seed or a JAX key as raw key data, an array of uint32, which every checkpoint can hold.

    From a Python integer it is made with NumPy, so that no backend is started: `jax.random.key(seed)` of JAX's default
    generator. Raw key data, and a batch of it, is kept as it is.
    """
    if is_key_data(x):
        return x
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    if isinstance(x, jax.Array) and x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.integer):
        return jax.random.key_data(jax.random.key(x, impl="threefry2x32"))
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        seed = operator.index(x) % 2**64
        key = np.array([seed >> 32, seed % 2**32], np.uint32)
        key.setflags(write=False)
        return key
    raise ValueError(f"A `key` is a seed such as `0`, or a key such as `jax.random.key(0)`, got {x!r}.")


def key(default: int = 0) -> Any:
    """A field that holds a random key: given as a seed or a JAX key, kept as raw key data."""
    return eqx.field(default=default, converter=as_key, metadata={"key": True})


def next_keys(raw: Array, n: int) -> tuple[Array, list[Array]]:
    """New raw key data for the state, and `n` keys to use now, one for each leaf."""
    kept, used = jax.random.split(jax.random.wrap_key_data(raw, impl=_GENERATORS[raw.shape[-1]]))
    return jax.random.key_data(kept), list(jax.random.split(used, n)) if n else []
