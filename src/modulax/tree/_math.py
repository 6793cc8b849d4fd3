"""Numbers that whole trees have: sums, norms, inner products, extrema."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike, Bool, Float, Inexact, Num, PyTree, Real

from .._support.arithmetic import abs_sq, at_least_float32, common_dtype, default_float, in_dtype, safe_sqrt
from ._leaves import check_shapes, columns, leaves_of
from ._paths import leaf_paths


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


def total(function: Callable[..., Array], *trees: PyTree) -> Inexact[Array, ""]:
    """The sum of `function(*leaves)` over all entries of all leaves, in at least float32."""
    leaves = zip(*map(jtu.tree_leaves, trees), strict=True)
    sums = [jnp.sum(function(*_widened(*xs))) for xs in leaves]
    dtype = common_dtype(default_float(), *(s.dtype for s in sums))
    return functools.reduce(operator.add, [in_dtype(s, dtype) for s in sums], jnp.zeros((), dtype))


def _widened(*xs: Array) -> list[Array]:
    dtype = at_least_float32(*(x.dtype for x in xs))
    return [in_dtype(x, dtype) for x in xs]


def _absolute(x: Array) -> Array:
    """The absolute value, of which also the derivative of a complex one is zero at zero."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.abs(jnp.where(is_zero, jnp.ones_like(x), x)))


def norm(tree: PyTree, ord: int | float | str | None = None, squared: bool = False) -> Float[Array, ""]:
    r"""The norm of all leaves together, as if they were one vector: $\sqrt{\sum_i |x_i|^2}$.

    It is accumulated in at least float32, so that it neither overflows for float16 nor rounds for bfloat16, and is
    differentiable at zero.

    Args:
        tree: a tree of arrays; without any, its norm is zero.
        ord: None or 2 for the Euclidean norm, 1 for the sum of absolute values, `jnp.inf` for the largest one.
        squared: whether to return its square, for which no root is taken.

    Returns:
        A real number, in JAX's default float dtype or that of the leaves, whichever is wider.
    """
    leaves, _ = leaves_of("tree.norm", "tree", tree)
    if ord is None or ord == 2:
        square = total(abs_sq, leaves)
        return square if squared else safe_sqrt(square)
    if ord == 1:
        value = total(_absolute, leaves)
    elif ord in (math.inf, "inf", "infinity"):
        zero = jnp.zeros((), default_float())
        value = _reduced(jnp.max, [zero, *(_absolute(_widened(x)[0]) for x in leaves)], zero)
    else:
        raise ValueError(f"`tree.norm(ord=...)` must be None, 1, 2 or `jnp.inf`, got {ord!r}.")
    return value**2 if squared else value


def global_norm(updates: PyTree) -> Float[Array, ""]:
    """The Euclidean norm of all leaves together; see `tree.norm`, which knows others.

    Args:
        updates: a tree of arrays.
    """
    return norm(updates)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Inexact[Array, ""]:
    r"""The inner product of two trees, $\sum_i \bar x_i y_i$ over all entries of all leaves.

    It is accumulated in at least float32.

    Args:
        tree_x: a tree of arrays; of complex ones it takes the conjugate.
        tree_y: a tree with leaves at the same paths and of the same shapes.

    Returns:
        A number, complex if a leaf is, in JAX's default float dtype or that of the leaves, whichever is wider.
    """
    (xs, ys), _ = columns("tree.vdot", tree_x=tree_x, tree_y=tree_y)
    check_shapes("tree.vdot", tree_x, xs, ys)
    return total(_product, xs, ys)


def inner(x: PyTree, y: PyTree) -> Float[Array, ""]:
    r"""The real inner product of all leaves together, $\operatorname{Re} \sum_i \bar x_i y_i$."""
    return total(lambda x, y: jnp.real(_product(x, y)), x, y)


def _product(x: Array, y: Array) -> Array:
    return (jnp.conj(x) if jnp.iscomplexobj(x) else x) * y


def sum(tree: PyTree, associative_reduction: bool = False) -> Num[Array, ""]:
    """The sum of all entries of all leaves.

    Args:
        tree: a tree of arrays.
        associative_reduction: whether the sums of the leaves are added in pairs, then the pairs, and so on, instead of
            one after the other, so that fewer additions wait for each other.

    Returns:
        A number in the dtype that the leaves have together, in at least float32 if they are floats. Integers are
        summed as integers. The sum of nothing is zero.
    """
    leaves, _ = leaves_of("tree.sum", "tree", tree)
    sums = [jnp.sum(_widened(x)[0]) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.sum(x) for x in leaves]
    dtype = common_dtype(*(s.dtype for s in sums)) if sums else default_float()
    reduce = jax.tree.reduce_associative if associative_reduction else jtu.tree_reduce
    return reduce(operator.add, [in_dtype(s, dtype) for s in sums] or [jnp.zeros((), dtype)])


def max(tree: PyTree) -> Real[Array, ""]:
    """The largest entry of all leaves.

    Args:
        tree: a tree of arrays of real numbers.

    Returns:
        A number in the dtype that the leaves have together: that of integers is an integer. The largest of no entries
        is minus infinity.
    """
    return _reduced(jnp.max, _real_leaves("tree.max", tree), jnp.asarray(-jnp.inf))


def min(tree: PyTree) -> Real[Array, ""]:
    """The smallest entry of all leaves.

    Args:
        tree: a tree of arrays of real numbers.

    Returns:
        A number in the dtype that the leaves have together: that of integers is an integer. The smallest of no entries
        is infinity.
    """
    return _reduced(jnp.min, _real_leaves("tree.min", tree), jnp.asarray(jnp.inf))


def _real_leaves(owner: str, tree: PyTree) -> list[Array]:
    leaves, _ = leaves_of(owner, "tree", tree)
    for path, x in zip(leaf_paths(tree), leaves, strict=True):
        if jnp.iscomplexobj(x):
            raise ValueError(f"`{owner}` needs real numbers, which have an order, and `{path}` is complex.")
    return leaves


def _reduced(reduce: Callable[..., Array], leaves: list[Array], of_nothing: Array) -> Array:
    """The extremum of those of the leaves that have one."""
    values = [reduce(x) for x in leaves if x.size]
    dtype = common_dtype(*(x.dtype for x in values or [of_nothing]))
    return reduce(jnp.stack([in_dtype(x, dtype) for x in values])) if values else of_nothing


def size(tree: PyTree) -> int:
    """How many entries all leaves have together.

    Args:
        tree: a tree of arrays, or of what has a shape, such as `jax.eval_shape` returns.
    """
    leaves, _ = leaves_of("tree.size", "tree", tree)
    return functools.reduce(operator.add, [x.size for x in leaves], 0)


def allclose(
    a: PyTree, b: PyTree, rtol: ArrayLike = 1e-5, atol: ArrayLike = 1e-8, equal_nan: bool = False
) -> Bool[Array, ""]:
    r"""Whether two trees are equal but for rounding: $|a_i - b_i| \le \text{atol} + \text{rtol} \, |b_i|$ everywhere.

    Args:
        a: a tree of arrays.
        b: a tree with leaves at the same paths and of the same shapes, perhaps of other dtypes.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        equal_nan: whether NaN equals NaN.

    Returns:
        A boolean array, so that it may be traced.
    """
    (xs, ys), _ = columns("tree.allclose", a=a, b=b)
    check_shapes("tree.allclose", a, xs, ys)
    pairs = [_widened(x, y) for x, y in zip(xs, ys, strict=True)]
    return _all([jnp.allclose(x, y, rtol, atol, equal_nan) for x, y in pairs])


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no entry of any leaf is NaN or infinite."""
    return _all([jnp.all(jnp.isfinite(x)) for x in jtu.tree_leaves(tree)])


def _all(found: list[Array]) -> Bool[Array, ""]:
    return functools.reduce(jnp.logical_and, found, jnp.ones((), bool))
