"""What a checkpoint holds for a leaf of a tree: the shape and dtype, and whether a stored array fits it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..tree._paths import Names


def is_key(x: Any) -> bool:
    """Whether this is a typed array of random keys."""
    return isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def plain(x: Any) -> Any:
    """Convert a leaf to what is stored: numbers to arrays, random keys to their data."""
    if isinstance(x, (bool, int, float, complex)):
        return np.asarray(x)
    return jax.random.key_data(x) if is_key(x) else x


def as_stored(x: Any) -> jax.ShapeDtypeStruct:
    """The shape, dtype and sharding of what is stored for a leaf of a template."""
    if is_key(x):
        return jax.eval_shape(jax.random.key_data, x)
    if isinstance(x, (bool, int, float, complex)):
        x = np.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))


def has_dtype_of(saved: Any, leaf: Any) -> bool:
    """Whether a stored array has the dtype of a leaf; only Python numbers may differ in precision."""
    found, wanted = np.dtype(saved.dtype), as_stored(leaf).dtype
    is_number = isinstance(leaf, (bool, int, float, complex)) and found.kind == wanted.kind
    # bfloat16 and similar dtypes after a NumPy file: the bytes are kept, but not the name.
    is_nameless = found.kind == "V" and found.itemsize == wanted.itemsize
    return found == wanted or is_number or is_nameless


def nested(flat: Mapping[Names, Any]) -> dict[str, Any]:
    """Nest arrays in dicts, one level for each of their names."""
    out: dict[str, Any] = {}
    for (*outer, last), value in flat.items():
        at = out
        for key in outer:
            at = at.setdefault(key, {})
        at[last] = value
    return out
