"""Arguments that all estimators share, with checks: parameters, a distribution, a function of a sample."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from .._plugin.arguments import check_integer, floating
from .._plugin.arrays import Params
from ..numerics import at_least_float32


def widened_params(owner: str, params: Params) -> tuple[list[Any], tuple[Array, ...]]:
    """Return the dtypes of the parameters, for their Jacobians, and the parameters in at least float32.

    Raises:
        ValueError: if `params` is not a tuple of arrays of floats.
    """
    if not isinstance(params, (tuple, list)):
        raise ValueError(
            f"`{owner}(params=...)` must be a tuple, as `dist_builder(*params)` takes it, got {_words(params)}. "
            "For a single parameter, write `(x,)`."
        )
    arrays = [floating(owner, **{f"params[{i}]": x})[0] for i, x in enumerate(params)]
    return [x.dtype for x in arrays], tuple(x.astype(at_least_float32(x.dtype)) for x in arrays)


def in_dtypes(dtypes: list[Any], jacobians: Sequence[Array]) -> tuple[Array, ...]:
    """Cast each Jacobian to the dtype of its parameter."""
    return tuple(x.astype(dtype) for x, dtype in zip(jacobians, dtypes, strict=True))


def draw(owner: str, dist: Any, rng: PRNGKeyArray, num_samples: int) -> Array:
    """Draw samples along the first axis.

    Raises:
        ValueError: if the distribution doesn't support `sample((num_samples,), seed=rng)`.
    """
    check_integer(owner, "num_samples", num_samples)
    if not callable(getattr(dist, "sample", None)):
        raise ValueError(
            f"`{owner}(dist_builder=...)` must return a distribution with `sample(shape, seed)`, got {_words(dist)}."
        )
    signature = inspect.signature(dist.sample)
    try:
        signature.bind((num_samples,), seed=rng)
    except TypeError as error:
        raise ValueError(
            f"`{owner}` calls `sample((num_samples,), seed=rng)`, but the distribution from `dist_builder` has "
            f"`{type(dist).__name__}.sample{signature}`: wrap it in a class with `sample(self, shape, seed)`."
        ) from error
    samples = jnp.asarray(dist.sample((num_samples,), seed=rng))
    if samples.shape[:1] != (num_samples,):
        raise ValueError(
            f"`{owner}` needs {num_samples} samples along the first axis from `sample(({num_samples},), seed=rng)`, "
            f"got {_words(samples)}."
        )
    return samples


def scalar(
    what: str, function: Callable[..., ArrayLike], *, is_differentiated: bool = False, hint: str = ""
) -> Callable[..., Array]:
    """Wrap a function so that its result is checked.

    Raises:
        ValueError: on a call, if the result is not a real scalar, or not a scalar float if it is differentiated.
    """
    needed = "a scalar float, because it is differentiated," if is_differentiated else "a real scalar"

    def checked(*args: Any) -> Array:
        value = function(*args)
        is_one = eqx.is_array_like(value) and jnp.shape(value) == () and not jnp.iscomplexobj(value)
        if not is_one or (is_differentiated and not jnp.issubdtype(jnp.result_type(value), jnp.floating)):
            raise ValueError(f"{what} must return {needed} for one sample, got {_words(value)}.{hint}")
        return jnp.asarray(value)

    return checked


def _words(x: Any) -> str:
    """Describe a value for an error message."""
    if isinstance(x, (jax.Array, np.ndarray)):
        return f"an array of shape {x.shape} and dtype {x.dtype}"
    return f"`{type(x).__name__}`"
