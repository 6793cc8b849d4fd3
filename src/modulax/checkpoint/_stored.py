"""What a checkpoint holds for a leaf of a tree: the shape and dtype, and whether a stored array fits it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._plugin.trees import Names


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
    """Whether a stored array has the dtype of a leaf. Where either is a Python number, the precision may differ."""
    found, wanted = np.dtype(saved.dtype), as_stored(leaf).dtype
    # bfloat16 and similar dtypes after a NumPy file: the bytes are kept, but not the name.
    is_nameless = found.type is np.void and found.itemsize == wanted.itemsize
    return found == wanted or is_nameless or _is_number_for(saved, leaf)


def _is_number_for(saved: Any, leaf: Any) -> bool:
    """Whether a stored array is the value of a Python number, or becomes one, and is of the kind of the leaf.

    Stored, a Python number is a scalar like those of NumPy in the same dtype. An integer may be the value of a float,
    such as a learning rate of 1.
    """
    found, wanted = _kind(saved.dtype), _kind(as_stored(leaf).dtype)
    is_number = isinstance(leaf, (bool, int, float, complex)) or (not saved.shape and saved.dtype in _OF_PYTHON)
    return is_number and (found == wanted or (found, wanted) == (jnp.integer, jnp.floating))


_OF_PYTHON = (np.asarray(0.0).dtype, np.asarray(0).dtype)


def _kind(dtype: Any) -> Any:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((kind for kind in kinds if jnp.issubdtype(dtype, kind)), None)


def as_number_for(value: Any, leaf: Any) -> Any:
    """Convert the stored value of a Python number to the dtype of a leaf; another value is returned as it is.

    Raises:
        ValueError: if the dtype doesn't hold the number.
    """
    wanted = as_stored(leaf).dtype
    if value.dtype == wanted or value.dtype not in _OF_PYTHON or value.shape:
        return value
    with np.errstate(over="ignore"):  # which the error says
        cast = np.asarray(value).astype(wanted)
    is_held = cast == value if jnp.issubdtype(wanted, jnp.integer) else np.isfinite(cast) or not np.isfinite(value)
    if not is_held:
        raise ValueError(f"The checkpoint has the number {value}, which {wanted} of the template doesn't hold.")
    return cast


def cast(x: Any, leaf: Any) -> Any:
    """Cast an array to the dtype of a leaf, if it is of the same kind.

    optax stores some scalars as arrays of one element, and some counts as floats.
    """
    wanted = as_stored(leaf)
    if np.size(x) == wanted.size == 1:
        x = jnp.reshape(x, wanted.shape)
    kinds = {_kind(x.dtype), _kind(wanted.dtype)}
    fits = len(kinds) == 1 or (not x.shape and kinds == {jnp.integer, jnp.floating})
    return jnp.asarray(x).astype(wanted.dtype) if fits and x.dtype != wanted.dtype else x


def nested(flat: Mapping[Names, Any]) -> dict[str, Any]:
    """Nest arrays in dicts, one level for each of their names."""
    out: dict[str, Any] = {}
    for (*outer, last), value in flat.items():
        at = out
        for key in outer:
            at = at.setdefault(key, {})
        at[last] = value
    return out
