"""Map a function over the leaves of a tree, traced once per shape instead of once per leaf.

`map_leaves` groups the leaves by structure, shape and dtype, and calls one inner `jax.jit` of the function for each.
JAX traces such a function once per shape, and every further call adds a single equation to the outer program. Groups of
`CHUNK` leaves are calls of a second jitted function, so that a model of a thousand leaves adds some hundred equations
instead of a thousand. XLA inlines all of it, so the compiled program is that of a plain loop. A leaf that is the only
one of its kind is computed without `jax.jit`, since a call costs time to trace, lower and compile.

`traced_by_kind` is that without groups, for functions with something static for each leaf, such as how it is matrices.

`map_arithmetic` adds the casts: it computes in at least float32 and returns the dtypes of given examples. `cast_all`
and `promotion_of` are those of rules on one array.
"""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._support.arithmetic import at_least_float32, common_dtype, real_dtype

CHUNK = 8
T = TypeVar("T")


class _LeafFunction:
    """A function of shared values and of the values of one leaf, with its form for several leaves."""

    def __init__(self, function: Callable[..., Any]):
        self.alone = function
        self.one = jax.jit(function)
        self.many = jax.jit(lambda shared, group: [self.one(shared, *column) for column in group])


# Local to a thread, because two threads may trace at the same time.
class _Shared(threading.local):
    functions: dict[Hashable, _LeafFunction] | None = None


_shared = _Shared()


@contextlib.contextmanager
def one_function_per_key() -> Iterator[None]:
    """Trace the functions of equal keys once for all calls of `map_leaves` in this context."""
    before = _shared.functions
    _shared.functions = {} if before is None else before
    try:
        yield
    finally:
        _shared.functions = before


def map_leaves(
    function: Callable[..., Any],
    shared: Any,
    columns: Sequence[tuple[Any, ...]],
    *,
    at: Callable[[int], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext(),
    key: Hashable = None,
) -> list[Any]:
    """Compute `[function(shared, *column) for column in columns]`, as a small program.

    Columns of equal structure, shapes and dtypes are traced once and called in groups, so that tracing a tree of a
    thousand leaves costs about as much as tracing its few distinct shapes. The compiled program is the same.

    Args:
        function: the function.
        shared: its first argument.
        columns: its other arguments for each leaf.
        at: returns a context, such as one that adds the path to an error, in which the column with an index, or a group
            that begins with it, is computed.
        key: what the function depends on. In `one_function_per_key`, leaves of equal shape are traced once for all
            calls with equal keys.

    Returns:
        the results for each leaf.
    """
    leafwise = _LeafFunction(function)
    if key is not None and _shared.functions is not None:
        leafwise = _shared.functions.setdefault(key, leafwise)
    kinds = list(map(_kind, columns))
    counts = collections.Counter(kinds)

    def each(i: int) -> Any:
        with at(i):
            # A call of a jitted function costs time to trace, lower and compile, which a single leaf does not repay.
            return (leafwise.alone if counts[kinds[i]] == 1 else leafwise.one)(shared, *columns[i])

    def together(group: Sequence[int]) -> list[Any]:
        with at(group[0]):
            return leafwise.many(shared, [columns[i] for i in group])

    return in_groups(kinds, CHUNK, each, together)


def traced_by_kind(
    function: Callable[..., T], statics: Sequence[Hashable], columns: Sequence[tuple[Any, ...]]
) -> list[Callable[[], T]]:
    """Return calls of `function(static, *column)` for all leaves, traced once per kind of leaf.

    There are no groups of calls: with as many arrays for each leaf as a preconditioner has, they take longer to trace.

    Args:
        function: the function.
        statics: its first argument for each leaf.
        columns: its other arguments for each leaf.
    """
    kinds = [(static, _kind(column)) for static, column in zip(statics, columns, strict=True)]
    counts = collections.Counter(kinds)
    one = jax.jit(function, static_argnums=0)
    rows = zip(kinds, statics, columns, strict=True)
    return [functools.partial(function if counts[kind] == 1 else one, static, *row) for kind, static, row in rows]


def _kind(column: Any) -> Hashable:
    """What columns have in common for which a function is traced once: structure, shapes and dtypes."""
    leaves, treedef = jtu.tree_flatten(column)
    return treedef, tuple((x.shape, x.dtype) for x in leaves)


def in_groups(
    kinds: Sequence[Hashable], size: int, each: Callable[[int], Any], together: Callable[[Sequence[int]], list[Any]]
) -> list[Any]:
    """Compute a result for every index, for groups of `size` indices of one kind together, and for others alone."""
    by_kind: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, kind in enumerate(kinds):
        by_kind[kind].append(i)
    out: list[Any] = [None] * len(kinds)
    for indices in by_kind.values():
        while len(indices) >= 2 * size or len(indices) == size:
            group, indices = indices[:size], indices[size:]
            for i, result in zip(group, together(group), strict=True):
                out[i] = result
        for i in indices:
            out[i] = each(i)
    return out


def map_arithmetic(
    rule: Callable[..., Sequence[Array]],
    numbers: Any,
    columns: Sequence[Sequence[Array]],
    like: Sequence[Sequence[Any]],
) -> list[list[Array]]:
    """Compute `rule(numbers, *arrays)` for every leaf in at least float32.

    Args:
        rule: a function of the numbers, in the dtype of the arithmetic, and of one array from each column.
        numbers: a tree of scalars that all leaves share.
        columns: for each array argument of the rule, its arrays, one per leaf.
        like: for each result of the rule, arrays whose dtypes the result is cast to, one per leaf.

    Returns:
        A column of arrays for each result.
    """

    def one(numbers: Any, arrays: Sequence[Array], examples: Sequence[Any]) -> list[Array]:
        dtype = at_least_float32(*(x.dtype for x in arrays))
        # Counts and flags among the numbers keep their dtypes.
        numbers = jtu.tree_map(lambda n: n.astype(real_dtype(dtype)) if _is_float(n) else n, numbers)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            results = rule(numbers, *(x.astype(dtype) for x in arrays))
        return [new.astype(example.dtype) for new, example in zip(results, examples, strict=True)]

    rows = list(zip(zip(*columns, strict=True), zip(*like, strict=True), strict=True))
    results = map_leaves(one, jtu.tree_map(jnp.asarray, numbers), rows)
    return [[row[i] for row in results] for i in range(len(like))]


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def promotion_of(arrays: Sequence[Array]) -> contextlib.AbstractContextManager[None]:
    """Allow dtype promotion if an array is complex: strict promotion forbids a real number times a complex array."""
    is_complex = any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in arrays)
    return jax.numpy_dtype_promotion("standard") if is_complex else contextlib.nullcontext()


def cast_all(tree: PyTree, dtype: Any) -> PyTree:
    """Cast real arrays to the real dtype of the precision of `dtype`, and complex arrays to the complex one."""

    def cast(x: Any) -> Array:
        if not hasattr(x, "dtype"):  # under `jax.disable_jit`, a number that a rule returns in `survey` is one here too
            x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x.astype(common_dtype(dtype, jnp.complex64))
        return x.astype(real_dtype(dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jtu.tree_map(cast, tree)
