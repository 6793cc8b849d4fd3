"""Arithmetic on whole trees."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, DTypeLike, Float, PyTree

from .._numerics import abs_sq, at_least_float32, common_dtype, default_float, safe_sqrt


def trainable(tree: PyTree) -> PyTree:
    """The tree with everything that is no floating or complex array replaced by None, and without weak types.

    Where an Equinox model keeps its state, before `make_with_state` took it out, nothing is trained either: so `init`
    may come before or after (equinox issue 1118).
    """
    return jtu.tree_map(lambda x: strong(x) if eqx.is_inexact_array(x) else None, tree, is_leaf=_is_state_index)


def _is_state_index(x: Any) -> bool:
    return isinstance(x, eqx.nn.StateIndex)


def strong(x: Any) -> Any:
    """The array without weak type: a state like it keeps its dtype, and a restored one does not retrace."""
    is_weak = isinstance(x, jax.Array) and x.aval.weak_type
    return jax.lax.convert_element_type(x, x.dtype) if is_weak else x


def widened(tree: PyTree) -> PyTree:
    """The tree in at least float32, so that what is computed of it is not rounded."""
    return jtu.tree_map(lambda x: x.astype(at_least_float32(x.dtype)), tree)


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Zeros of the same shapes, and of the same dtypes unless another is given."""
    return jtu.tree_map(lambda x: jnp.zeros(x.shape, dtype or x.dtype), tree)


def total(function: Callable[..., Array], *trees: PyTree) -> Float[Array, ""]:
    """The sum of `function(*leaves)` over all entries of all leaves, in at least float32."""
    leaves = zip(*map(jtu.tree_leaves, trees), strict=True)
    sums = [jnp.sum(function(*(x.astype(at_least_float32(x.dtype)) for x in xs))) for xs in leaves]
    dtype = common_dtype(default_float(), *(s.dtype for s in sums))
    return functools.reduce(operator.add, [s.astype(dtype) for s in sums], jnp.zeros((), dtype))


def norm(tree: PyTree) -> Float[Array, ""]:
    r"""The Euclidean norm of all leaves together, $\sqrt{\sum_i |x_i|^2}$.

    It is accumulated in at least float32 and differentiable at zero.
    """
    return safe_sqrt(total(abs_sq, tree))


def vdot(x: PyTree, y: PyTree) -> Float[Array, ""]:
    r"""The inner product of all leaves together, $\operatorname{Re} \sum_i \bar x_i y_i$."""
    return total(lambda x, y: jnp.real(jnp.conj(x) * y), x, y)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no entry of any leaf is NaN or infinite."""
    found = [jnp.all(jnp.isfinite(x)) for x in jtu.tree_leaves(tree)]
    return functools.reduce(jnp.logical_and, found, jnp.ones((), bool))
