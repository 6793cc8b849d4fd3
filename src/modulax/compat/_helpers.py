"""Helpers of optax's private modules, which programs that extend optax import; `dir` does not list them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import MuonDimensionNumbers, tree
from .._plugin.arrays import enable_x64
from .._plugin.containers import Matrix, matrices_as, matrices_of, two_loops, zoom
from ..estimators import MultiNormal
from ..linalg import orthogonalize
from ..numerics import abs_sq
from ..tree import norm


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


def muon_reshape(x: Any, dim_nums: Any) -> tuple[Any, Any]:
    """Return two functions: one that reshapes an array to a batch of matrices, along one axis, and its inverse.

    Args:
        x: the array.
        dim_nums: its axes of rows and columns.
    """
    matrix = _matrix("_compute_muon_reshape", x, dim_nums)
    return lambda y: matrix.of(y).reshape(-1, *matrix.size), matrix.back


def orthogonalize_via_newton_schulz(
    x: Any,
    ns_coeffs: Any,
    ns_steps: Any = 5,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    dimension_numbers: Any = None,
) -> Any:
    """Orthogonalize a matrix, as in Muon: `modulax.linalg.orthogonalize`.

    Args:
        x: an array.
        ns_coeffs: the coefficients.
        ns_steps: number of iterations.
        preconditioning: how to bound the singular values.
        eps: added to the norm.
        dimension_numbers: the axes of rows and columns; by default the two axes of a matrix.
    """
    matrix = _matrix("orthogonalize_via_newton_schulz", x, dimension_numbers)
    return matrix.back(orthogonalize(matrix.of(x), ns_coeffs, ns_steps, preconditioning=preconditioning, eps=eps))


def _matrix(name: str, x: Any, numbers: Any) -> Matrix:
    (matrix,) = matrices_of(name, matrices_as(MuonDimensionNumbers)(numbers), x)
    if matrix is None:
        raise ValueError(f"`{name}` needs a matrix, or the axes of one, got an array of shape {x.shape}.")
    return matrix


def x64_precision(enable_x64_precision: bool = True) -> Any:
    """A context in which double precision is enabled, or disabled."""
    return enable_x64(enable_x64_precision)


def set_diags(a: Any, new_diags: Any) -> jax.Array:
    """Return square matrices with other diagonals.

    Args:
        a: the matrices, along the first of three axes.
        new_diags: the diagonals, along the first of two axes.
    """
    if a.ndim != 3:
        raise ValueError(f"Expected `a` to be a 3D tensor of matrices, got the shape {a.shape}.")
    if new_diags.ndim != 2:
        raise ValueError(f"Expected `new_diags` to be a 2D array of diagonals, got the shape {new_diags.shape}.")
    n, rows, columns = a.shape
    if rows != columns:
        raise ValueError(f"Shape mismatch: expected `a.shape` to be that of square matrices, got {a.shape}.")
    if new_diags.shape != (n, rows):
        raise ValueError(f"Shape mismatch: expected `new_diags.shape` to be {(n, rows)}, got {new_diags.shape}.")
    is_diagonal = jnp.eye(a.shape[-1], dtype=bool)
    return jnp.where(is_diagonal, new_diags[:, :, None], a)


def tile_second_to_last_dim(a: Any) -> jax.Array:
    """Return an array with a further axis of the length of the last one, along which it is constant.

    Args:
        a: the array.
    """
    return jnp.broadcast_to(a[..., None], (*a.shape, a.shape[-1]))


def extract_fns_kwargs(
    fns: Sequence[Callable[..., Any]], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that each function names, and those that none does.

    Args:
        fns: the functions.
        kwargs: arguments by name.
    """
    named = [{name: x for name, x in kwargs.items() if name in inspect.signature(fn).parameters} for fn in fns]
    return named, {name: x for name, x in kwargs.items() if not any(name in given for given in named)}


def power_iteration_goes_on(num_iters: int, error_tolerance: float, loop_vars: tuple[Any, ...]) -> Any:
    """Whether a power iteration is neither at its end nor exact.

    Args:
        num_iters: the largest number of iterations.
        error_tolerance: the largest norm of the residual.
        loop_vars: the vector, the matrix times it, the eigenvalue, and the number of iterations so far.
    """
    vector, product, eigenvalue, count = loop_vars
    residual = jax.tree.map(lambda v, z: z - eigenvalue * v, vector, product)
    return jnp.logical_and(count < num_iters, norm(residual) > error_tolerance)


NO_PARAMS_MSG = "`update` needs the parameters: call `update(updates, state, params)`."
HELPERS: dict[str, Any] = {
    "FLAG_CURVATURE_COND_NOT_SATISFIED": zoom.CONDITION_ON_SLOPE_MISSED,
    "FLAG_INTERVAL_NOT_FOUND": zoom.NO_INTERVAL,
    "FLAG_INTERVAL_TOO_SMALL": zoom.INTERVAL_TOO_SHORT,
    "FLAG_NOT_A_DESCENT_DIRECTION": zoom.NOT_A_DESCENT_DIRECTION,
    "FLAG_NO_STEPSIZE_FOUND": zoom.NO_STEP_SIZE,
    "MultiNormalDiagFromLogScale": MultiNormal,
    "NO_PARAMS_MSG": NO_PARAMS_MSG,
    "PRNGKey": jax.Array,
    "Shape": Sequence[int],
    "_compute_muon_reshape": muon_reshape,
    "_extract_fns_kwargs": extract_fns_kwargs,
    "_mask_callable": is_function,
    "_precondition_by_lbfgs": precondition_by_lbfgs,
    "abs_sq": abs_sq,
    "_power_iteration_cond_fun": power_iteration_goes_on,
    "canonicalize_dtype": canonicalize_dtype,
    "cast_tree": tree.cast,
    "orthogonalize_via_newton_schulz": orthogonalize_via_newton_schulz,
    "set_diags": set_diags,
    "tile_second_to_last_dim": tile_second_to_last_dim,
    "x64_precision": x64_precision,
}
