"""What idioms return, as lists that can be compared."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import settings

ARRAYS: Any = (jax.Array, np.ndarray, np.generic)


def leaves(x: Any, path: str = "") -> list[tuple[str, Any]]:
    """What is in a result, by path: the names of classes, the fields of NamedTuples, numbers and texts."""
    if hasattr(x, "get_raw_value"):
        x = x.get_value()
    if isinstance(x, ARRAYS):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return [(f"{path}:{x.dtype}", np.asarray(jax.random.key_data(x) if is_key else x))]
    cls: Any = type(x)
    kind = cls.__name__
    if hasattr(x, "_asdict"):
        children = x._asdict()
    elif hasattr(cls, "__dataclass_fields__"):
        children = {name: getattr(x, name) for name in cls.__dataclass_fields__}
    elif hasattr(x, "items"):
        children = {key: x[key] for key in sorted(x, key=str)}
    elif isinstance(x, list | tuple):
        children = dict(enumerate(x))
    else:
        return [(f"{path}:{kind}", x)]
    return [
        (f"{path}:{kind}", len(children)),
        *(y for name, x in children.items() for y in leaves(x, f"{path}/{name}")),
    ]


def difference(theirs: Any, ours: Any) -> str:
    """The first difference between two results; an empty string if there is none."""
    theirs, ours = leaves(theirs), leaves(ours)
    for (a_path, a), (b_path, b) in zip(theirs, ours, strict=False):
        if a_path != b_path:
            return f"{a_path} in optax, {b_path} here"
        is_equal = np.shape(a) == np.shape(b)
        if is_equal and isinstance(a, np.ndarray | float):
            is_equal = np.allclose(np.asarray(b, complex), np.asarray(a, complex), 1e-6, 1e-6, equal_nan=True)
        elif is_equal:
            is_equal = a == b
        if not is_equal:
            return f"{a_path}: {a!r} in optax, {b!r} here"
    return "" if len(theirs) == len(ours) else f"{len(theirs)} values in optax, {len(ours)} here"


def result(function: Any, module: Any) -> Any:
    """What an idiom returns, under JAX's own settings."""
    with settings.jax_defaults(), warnings.catch_warnings(action="ignore"):
        return function(module)
