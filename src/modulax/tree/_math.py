"""Reductions of whole trees: sums, norms, inner products, extrema, comparisons."""

import contextlib
import contextvars
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Inexact, Num, PyTree, Real

from .._support.arithmetic import (
    abs_sq,
    at_least_float32,
    common_dtype,
    default_float,
    dtype_in_program,
    in_dtype,
    is_inexact_array,
    rank_of,
    safe_sqrt,
)
from .._support.placement import typed_like
from .._support.types import ARRAY_TYPES
from ._leaves import check_shapes, columns, leaves_of
from ._paths import leaf_paths


def trainable(tree: PyTree) -> PyTree:
    """Replace every leaf that is not a floating-point or complex array by None, and remove weak types.

    The state indices of an Equinox model are replaced as well: they hold arrays only until `make_with_state` takes them
    out, and `init` may be called before or after that (equinox issue 1118).
    """
    # `make_with_state` replaces these markers: https://github.com/patrick-kidger/equinox/issues/1118
    return jtu.tree_map(lambda x: strong(x) if is_inexact_array(x) else None, tree, is_leaf=is_state_index)


def shapes_of(params: PyTree) -> PyTree:
    """Replace parameters by their shapes and dtypes, and every other leaf by None; shapes are accepted too.

    The dtypes are those in a compiled program, which has no float64 unless it is enabled.
    """

    def shape(x: Any) -> jax.ShapeDtypeStruct | None:
        is_shape = isinstance(x, jax.ShapeDtypeStruct) and jnp.issubdtype(x.dtype, jnp.inexact)
        is_param = is_shape or trainable(x) is not None
        return jax.ShapeDtypeStruct(x.shape, dtype_in_program(x.dtype)) if is_param else None

    return jtu.tree_map(shape, params, is_leaf=is_state_index)


def choose(which: Array, x: PyTree, y: PyTree) -> PyTree:
    """Return the first of two trees with equal structures, shapes and dtypes if `which` is true; else the second.

    The result is where the second one is.
    """

    def one(a: Array, b: Array) -> Array:
        # A choice in bfloat16 is a kernel of its own on TPU, without the float32 state, which XLA would copy.
        wide = at_least_float32(b.dtype) if is_inexact_array(b) else b.dtype
        return in_dtype(jnp.where(which, in_dtype(typed_like(a, b), wide), in_dtype(b, wide)), b.dtype)

    return jtu.tree_map(one, x, y)


def is_state_index(x: Any) -> bool:
    """Whether a node is the index of a piece of state in an Equinox model."""
    return isinstance(x, eqx.nn.StateIndex)


def strong(x: Any) -> Any:
    """Remove the weak type of an array: a state like it keeps its dtype, and a restored one doesn't retrace."""
    is_weak = isinstance(x, jax.Array) and x.aval.weak_type
    return jax.lax.convert_element_type(x, x.dtype) if is_weak else x


def in_place_of(old: Any, new: Any) -> Any:
    """Return a number as an array that takes the place of another one, so that no program is traced or compiled again.

    It gets the dtype of the other one, no weak type, and its devices unless it has devices of its own. Whatever is not
    a real number, or a real array of the same shape, is returned as it is, without a weak type.
    """
    shape, dtype = np.shape(old), getattr(old, "dtype", default_float())
    is_number = isinstance(new, (int, float, *ARRAY_TYPES)) and np.shape(new) in ((), shape)
    if (
        not is_number
        or not jnp.issubdtype(dtype, jnp.floating)
        or rank_of(getattr(new, "dtype", dtype)) > rank_of(dtype)
    ):
        return strong(new)
    if isinstance(new, jax.Array):
        new = strong(new) if new.dtype == dtype else jax.lax.convert_element_type(new, dtype)
    else:
        new = jax.device_put(np.asarray(new, dtype))  # which `jax.transfer_guard` takes for meant
    is_known = isinstance(old, jax.Array) and not any(isinstance(x, Tracer) for x in (old, new))
    if is_known and old.committed and not new.committed and new.shape == shape:
        return jax.device_put(new, old.sharding)
    return new


# For `zeros_unless`: its results, what they are the zeros of, and the condition.
_zeroed = contextvars.ContextVar[tuple[tuple[list[Array], list[Array], Array], ...]]("_zeroed", default=())


@contextlib.contextmanager
def zeros_unless(is_good: Array, tree: PyTree) -> Iterator[PyTree]:
    """The tree, or zeros unless `is_good`: derivatives through many steps would meet a NaN also if it is not selected.

    In the block, the norm of the result is that of the tree, or zero. If `is_good` depends on the same norm, or on a
    reduction that XLA fuses with it, the tree is read once for both.
    """
    result = jtu.tree_map(lambda x: jnp.where(is_good, x, jnp.zeros_like(x)), tree)
    token = _zeroed.set((*_zeroed.get(), (jtu.tree_leaves(result), jtu.tree_leaves(tree), is_good)))
    try:
        yield result
    finally:
        _zeroed.reset(token)


def widened(tree: PyTree) -> PyTree:
    """Cast a tree to at least float32 for the arithmetic in between."""
    return jtu.tree_map(lambda x: x.astype(at_least_float32(x.dtype)), tree)


def total(function: Callable[..., Array], *trees: PyTree) -> Inexact[Array, ""]:
    """Sum `function(*leaves)` over all entries of all leaves, in at least float32."""
    leaves = zip(*map(jtu.tree_leaves, trees), strict=True)
    # Widened before the sum: the squares of a float16 array overflow above 255, and bfloat16 adds with 8 bits.
    sums = [jnp.sum(function(*_widened(*xs))) for xs in leaves]
    dtype = common_dtype(default_float(), *(s.dtype for s in sums))
    return functools.reduce(operator.add, [in_dtype(s, dtype) for s in sums], jnp.zeros((), dtype))


def _widened(*xs: Array) -> list[Array]:
    """Cast arrays to their common dtype of at least float32."""
    dtype = at_least_float32(*(x.dtype for x in xs))
    return [in_dtype(x, dtype) for x in xs]


def _absolute(x: Array) -> Array:
    """The absolute value, with derivative zero at zero for real entries too."""
    # The derivative of `jnp.abs` at a real zero is 1.
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.abs(jnp.where(is_zero, jnp.ones_like(x), x)))


def norm(tree: PyTree, ord: int | float | str | None = None, squared: bool = False) -> Float[Array, ""]:
    r"""Compute the norm of a tree as if all leaves were one vector, $\sqrt{\sum_i |x_i|^2}$.

    It is accumulated in at least float32, so that it neither overflows for float16 nor loses precision for bfloat16,
    and it is differentiable at zero.

    Args:
        tree: a tree of arrays; the norm of an empty tree is zero.
        ord: None or 2 for the Euclidean norm, 1 for the sum of absolute values, `jnp.inf` for the largest absolute
            value.
        squared: whether to return the squared norm, for which no root is taken.

    Returns:
        A real number, in JAX's default float dtype or that of the leaves, whichever is wider.

    Raises:
        ValueError: if `ord` is none of these, or a leaf is not an array.
    """
    leaves, _ = leaves_of("tree.norm", "tree", tree)
    if ord is None or ord == 2:
        square = _sum_of_squares(leaves)
        return square if squared else safe_sqrt(square)
    if ord == 1:
        value = total(_absolute, leaves)
    elif ord in (math.inf, "inf", "infinity"):
        # The norm of an empty tree is zero, and not minus infinity.
        zero = jnp.zeros((), default_float())
        value = _reduced(jnp.max, [zero, *(_absolute(_widened(x)[0]) for x in leaves)], zero)
    else:
        raise ValueError(f"`tree.norm(ord=...)` must be None, 1, 2 or `jnp.inf`, got {ord!r}.")
    return value**2 if squared else value


def _sum_of_squares(leaves: list[Array]) -> Array:
    for result, given, is_good in _zeroed.get():
        if leaves and [*map(id, leaves)] == [*map(id, result)]:
            return _known_sum_of_squares(leaves, jnp.where(is_good, _sum_of_squares(given), 0))
    return total(abs_sq, leaves)


@jax.custom_jvp
def _known_sum_of_squares(leaves: list[Array], value: Array) -> Array:
    del leaves
    return value


@_known_sum_of_squares.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # Not those of `value`: a cotangent of zero times a NaN that was not selected would be NaN.
    return jax.jvp(lambda leaves: total(abs_sq, leaves), primals[:1], tangents[:1])


def vdot(tree_x: PyTree, tree_y: PyTree) -> Inexact[Array, ""]:
    r"""Compute the inner product of two trees, $\sum_i \bar x_i y_i$ over all entries of all leaves.

    It is accumulated in at least float32.

    Args:
        tree_x: a tree of arrays, conjugated where they are complex.
        tree_y: a tree with leaves at the same paths and of the same shapes.

    Returns:
        A number, complex if a leaf is, in JAX's default float dtype or that of the leaves, whichever is wider.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes differ.
    """
    (xs, ys), _ = columns("tree.vdot", tree_x=tree_x, tree_y=tree_y)
    check_shapes("tree.vdot", tree_x, xs, ys)
    return total(_product, xs, ys)


def inner(x: PyTree, y: PyTree) -> Float[Array, ""]:
    r"""Compute the real inner product of all leaves together, $\operatorname{Re} \sum_i \bar x_i y_i$."""
    return total(lambda x, y: jnp.real(_product(x, y)), x, y)


def _product(x: Array, y: Array) -> Array:
    return (jnp.conj(x) if jnp.iscomplexobj(x) else x) * y


def sum(tree: PyTree, associative_reduction: bool = False) -> Num[Array, ""]:
    """Sum all entries of all leaves.

    Args:
        tree: a tree of arrays.
        associative_reduction: whether to add the sums of the leaves pairwise, in a tree, instead of one after another,
            so that fewer additions depend on each other.

    Returns:
        A number in the dtype that the leaves promote to, at least float32 if they are floats. Integers are summed as
        integers. The sum of an empty tree is zero.

    Raises:
        ValueError: if a leaf is not an array.
    """
    leaves, _ = leaves_of("tree.sum", "tree", tree)
    sums = [jnp.sum(_widened(x)[0]) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.sum(x) for x in leaves]
    dtype = common_dtype(*(s.dtype for s in sums)) if sums else default_float()
    reduce = jax.tree.reduce_associative if associative_reduction else jtu.tree_reduce
    return reduce(operator.add, [in_dtype(s, dtype) for s in sums] or [jnp.zeros((), dtype)])


def max(tree: PyTree) -> Real[Array, ""]:
    r"""Return the largest entry of all leaves.

    Args:
        tree: a tree of real arrays.

    Returns:
        A number in the dtype that the leaves promote to; the maximum of integers is an integer. The maximum of no
        entries is $-\infty$.

    Raises:
        ValueError: if a leaf is complex or not an array.
    """
    return _reduced(jnp.max, _real_leaves("tree.max", tree), jnp.asarray(-jnp.inf))


def min(tree: PyTree) -> Real[Array, ""]:
    r"""Return the smallest entry of all leaves.

    Args:
        tree: a tree of real arrays.

    Returns:
        A number in the dtype that the leaves promote to; the minimum of integers is an integer. The minimum of no
        entries is $\infty$.

    Raises:
        ValueError: if a leaf is complex or not an array.
    """
    return _reduced(jnp.min, _real_leaves("tree.min", tree), jnp.asarray(jnp.inf))


def _real_leaves(owner: str, tree: PyTree) -> list[Array]:
    """The leaves as arrays, after checking that none is complex."""
    leaves, _ = leaves_of(owner, "tree", tree)
    for path, x in zip(leaf_paths(tree), leaves, strict=True):
        if jnp.iscomplexobj(x):
            raise ValueError(f"`{owner}` needs real numbers, which can be ordered, and `{path}` is complex.")
    return leaves


def _reduced(reduce: Callable[..., Array], leaves: list[Array], of_nothing: Array) -> Array:
    """The extremum of all leaves that have entries."""
    # `jnp.max` of an array without entries is an error.
    values = [reduce(x) for x in leaves if x.size]
    dtype = common_dtype(*(x.dtype for x in values or [of_nothing]))
    return reduce(jnp.stack([in_dtype(x, dtype) for x in values])) if values else of_nothing


def size(tree: PyTree) -> int:
    """Count the entries of all leaves: the number of parameters of a model.

    Args:
        tree: a tree of arrays, or of anything with a shape, such as the result of `jax.eval_shape`.

    Raises:
        ValueError: if a leaf is not an array.
    """
    leaves, _ = leaves_of("tree.size", "tree", tree)
    return functools.reduce(operator.add, [x.size for x in leaves], 0)


def allclose(
    a: PyTree, b: PyTree, rtol: ArrayLike = 1e-5, atol: ArrayLike = 1e-8, equal_nan: bool = False
) -> Bool[Array, ""]:
    r"""Compare two trees up to rounding: $|a_i - b_i| \le \text{atol} + \text{rtol} \, |b_i|$ everywhere.

    Args:
        a: a tree of arrays.
        b: a tree with leaves at the same paths and of the same shapes; the dtypes may differ.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether NaN equals NaN.

    Returns:
        A boolean array, so that it can be used in compiled functions.

    Raises:
        ValueError: if the trees don't have leaves at the same paths, or shapes differ.
    """
    (xs, ys), _ = columns("tree.allclose", a=a, b=b)
    check_shapes("tree.allclose", a, xs, ys)
    pairs = [_widened(x, y) for x, y in zip(xs, ys, strict=True)]
    return _all([jnp.allclose(x, y, rtol, atol, equal_nan) for x, y in pairs])


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no entry of any leaf is NaN or infinite."""
    finite = [jnp.isfinite(x) for x in jtu.tree_leaves(tree)]
    # XLA:TPU fuses a reduction with that of a norm if both are of floats. XLA:CPU takes four times as long for these.
    return jax.lax.platform_dependent(finite, tpu=_all_as_floats, default=_all)


def _all_as_floats(flags: list[Array]) -> Array:
    return _all([jnp.min(x.astype(jnp.float32), initial=1) == 1 for x in flags])


def _all(flags: list[Array]) -> Bool[Array, ""]:
    return functools.reduce(jnp.logical_and, map(jnp.all, flags), jnp.ones((), bool))


def zeros_without(axes: tuple[int, ...], updates: PyTree) -> PyTree:
    """Zeros like the updates, on the same devices, without batch axes of examples."""
    return jtu.tree_map(lambda u: jnp.sum(jnp.zeros_like(u), axes) if axes else jnp.zeros_like(u), updates)


def shapes_without(axes: tuple[int, ...], updates: PyTree) -> PyTree:
    """The updates, or their shapes without batch axes of examples, for a function that tells parameters by shape."""
    return jax.eval_shape(lambda: zeros_without(axes, updates)) if axes else updates
