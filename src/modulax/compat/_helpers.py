"""Helpers of optax's private modules, which programs that extend optax import; `dir` does not list them."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._transforms.lbfgs import two_loops
from ..estimators import MultiNormal
from ..numerics import abs_sq


def is_function(mask: Any) -> bool:
    """Whether a mask is a function of the parameters, and not a tree that can be called, such as a model."""
    return callable(mask) and jtu.all_leaves([mask])


def canonicalize_dtype(dtype: Any) -> Any:
    """The dtype that JAX uses for this one, depending on x64; None for None."""
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


def precondition_by_lbfgs(
    updates: Any,
    diff_params_memory: Any,
    diff_updates_memory: Any,
    weights_memory: Any,
    identity_scale: Any,
    memory_idx: Any,
) -> Any:
    """Multiply the updates by the estimate of the inverse Hessian, by the two-loop recursion.

    Args:
        updates: a tree.
        diff_params_memory: differences of parameters, on the first axis.
        diff_updates_memory: differences of updates, on the first axis.
        weights_memory: the reciprocals of their inner products.
        identity_scale: factor of the initial estimate.
        memory_idx: index of the oldest entry.
    """
    leaves, treedef = jtu.tree_flatten(updates)
    memory_s, memory_y = jtu.tree_leaves(diff_params_memory), jtu.tree_leaves(diff_updates_memory)
    n = len(weights_memory)
    oldest_first = (memory_idx + jnp.arange(n)) % n
    scale = jnp.asarray(identity_scale, weights_memory.dtype)
    return treedef.unflatten(two_loops(leaves, memory_s, memory_y, weights_memory, oldest_first, scale))


def x64_precision(enable_x64_precision: bool = True) -> Any:
    """A context in which double precision is enabled, or disabled."""
    return jax.enable_x64(enable_x64_precision)


HELPERS: dict[str, Any] = {
    "MultiNormalDiagFromLogScale": MultiNormal,
    "_mask_callable": is_function,
    "_precondition_by_lbfgs": precondition_by_lbfgs,
    "abs_sq": abs_sq,
    "canonicalize_dtype": canonicalize_dtype,
    "x64_precision": x64_precision,
}
