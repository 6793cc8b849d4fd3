"""Map a function over the leaves of a tree, traced once per shape instead of once per leaf.

`map_leaves` groups the leaves by structure, shape and dtype, and calls one inner `jax.jit` of the function for each.
JAX traces such a function once per shape, and every further call adds a single equation to the outer program. Groups of
`CHUNK` leaves are calls of a second jitted function, so that a model of a thousand leaves adds some hundred equations
instead of a thousand. XLA inlines all of it, so the compiled program is that of a plain loop. A leaf that is the only
one of its kind is computed without `jax.jit`, since a call costs time to trace, lower and compile.

Within `stacking`, leaves that are rows of stacks are computed as stacks, by `jax.vmap` of the function. Weight decay is
computed on the rows: XLA fuses it with the sum of a parameter and its update, and the parameters, which are in no
stack, are not copied into one.

`map_arithmetic` adds the casts: it computes in at least float32 and returns the dtypes of given examples.
"""

import collections
import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._support.arithmetic import at_least_float32, real_dtype
from ._stacks import Stacks, active_stacks, take_apart

CHUNK = 8


class LeafFunction:
    """A function of shared values and of the values of one leaf, with its forms for several leaves and for stacks.

    If one object is passed to `map_leaves` several times, leaves of equal shape are traced once in all.
    """

    def __init__(self, function: Callable[..., Any]):
        self.alone = function
        self.one = jax.jit(function)
        self.many = jax.jit(lambda shared, group: [self.one(shared, *column) for column in group])
        self.on_stacks = jax.jit(self._on_stacks, static_argnums=(2, 3))
        self.on_rows = jax.jit(self._on_rows, static_argnums=2)
        self._known: dict[Hashable, _Operations] = {}

    def _on_stacks(self, shared: Any, leaves: Sequence[Any], treedef: Any, are_used: tuple[bool, ...]) -> Any:
        """Return the stacks of the arguments, those of the results, and the results of each row."""
        stacks = [jnp.stack(x) if isinstance(x, list) else x for x in leaves]
        axes = [0 if used else None for used in are_used]
        results = jax.vmap(lambda *row: self.alone(shared, *treedef.unflatten(row)), axes)(*stacks)
        results, result_def = jtu.tree_flatten(results)
        rows = list(zip(*map(take_apart, results), strict=True)) or [()] * len(stacks[are_used.index(True)])
        return stacks, results, list(map(result_def.unflatten, rows))

    def _on_rows(self, shared: Any, leaves: Sequence[Any], treedef: Any) -> list[Any]:
        return [self.alone(shared, *treedef.unflatten(row)) for row in zip(*leaves, strict=True)]

    def operations(self, kind: Hashable, shared: Any, column: tuple[Any, ...]) -> "_Operations":
        """What the function does to leaves of one kind."""
        if kind not in self._known:
            jaxpr = jax.make_jaxpr(self.alone)(shared, *column).jaxpr
            self._known[kind] = _Operations(jaxpr, len(jtu.tree_leaves(column)))
        return self._known[kind]


class _Operations:
    """What a function does to its last arguments, those of a leaf.

    Args:
        jaxpr: the function.
        count: the number of these arguments.
    """

    # Operations on arrays that XLA repeats in every fusion that reads the result, in place of storing it.
    cheap: ClassVar[frozenset[str]] = frozenset(
        {"add", "and", "clamp", "convert_element_type", "max", "min", "mul", "neg", "not", "or", "select_n", "sub"}
    )

    def __init__(self, jaxpr: Any, count: int):
        read = {id(v) for v in jaxpr.outvars} | {id(v) for equation in jaxpr.eqns for v in equation.invars}
        used = [id(v) in read for v in jaxpr.invars[-count:]]
        self.are_used = tuple(used) if any(used) else (True,) * count
        self.are_cheap = self._are_cheap(jaxpr)

    def _are_cheap(self, jaxpr: Any) -> bool:
        return all(
            equation.primitive.name in self.cheap
            or all(x.aval.ndim == 0 for x in (*equation.invars, *equation.outvars))
            or ("jaxpr" in equation.params and self._are_cheap(equation.params["jaxpr"].jaxpr))
            for equation in jaxpr.eqns
        )


def map_leaves(
    function: Callable[..., Any] | LeafFunction,
    shared: Any,
    columns: Sequence[tuple[Any, ...]],
    *,
    has_state: bool = True,
    at: Callable[[int], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext(),
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
        has_state: whether some arguments or results may be kept in a state. `Stacked` keeps these as stacks.

    Returns:
        the results for each leaf.
    """
    leafwise = function if isinstance(function, LeafFunction) else LeafFunction(function)
    stacks = active_stacks()
    if stacks is None:
        return _map_single(leafwise, shared, columns, at)
    out: list[Any] = [None] * len(columns)
    groups = _rows_of_one_group(stacks, columns)
    for group, members in groups.items():
        rows = [columns[i] for i in members.values()]
        results = _map_rows(stacks, leafwise, shared, group, rows, list(members), has_state)
        for i, result in zip(members.values(), results, strict=True):
            out[i] = result
    stacked = {i for members in groups.values() for i in members.values()}
    single = [i for i in range(len(columns)) if i not in stacked]
    for i, result in zip(
        single, _map_single(leafwise, shared, [columns[i] for i in single], lambda i: at(single[i])), strict=True
    ):
        out[i] = result
    return out


def _rows_of_one_group(stacks: Stacks, columns: Sequence[tuple[Any, ...]]) -> dict[tuple[int, Any], dict[int, int]]:
    """The columns of the leaves of each group, by the index of the leaf in the group; of one kind, and at least two."""
    groups: dict[tuple[int, Any], list[tuple[int, int]]] = collections.defaultdict(list)
    for i, column in enumerate(columns):
        leaves, treedef = jtu.tree_flatten(column)
        row = stacks.row_of(leaves)
        if row is not None:
            groups[row.group, (treedef, tuple(map(jax.typeof, leaves)))].append((row.member, i))
    return {key: dict(sorted(members)) for key, members in groups.items() if len(members) > 1}


def _map_rows(
    stacks: Stacks,
    leafwise: LeafFunction,
    shared: Any,
    group: tuple[int, Any],
    columns: Sequence[tuple[Any, ...]],
    indices: Sequence[int],
    has_state: bool,
) -> list[Any]:
    """Apply the function to the stacks of the columns; the results are rows again."""
    treedef = group[1][0]
    operations = leafwise.operations(group[1], shared, columns[0])
    used = operations.are_used
    leaves = list(map(list, zip(*map(jtu.tree_leaves, columns), strict=True)))
    given: list[Any] = [rows if (x := stacks.known(rows)) is None else x for rows in leaves]
    needs_more = any(isinstance(x, list) and is_used for x, is_used in zip(given, used, strict=True))
    if needs_more and not has_state and operations.are_cheap:
        results = leafwise.on_rows(shared, given, treedef)
        for rows in zip(*map(jtu.tree_leaves, results), strict=True):
            stacks.place(rows, group[0], indices)
        return results
    given = [x if is_used else rows[0] for x, rows, is_used in zip(given, leaves, used, strict=True)]
    joined, new, results = leafwise.on_stacks(shared, given, treedef, used)
    for x, rows, is_used in zip(joined, leaves, used, strict=True):
        if is_used:
            stacks.remember(x, rows)
    for x, rows in zip(new, zip(*map(jtu.tree_leaves, results), strict=True), strict=True):
        stacks.place(rows, group[0], indices)
        stacks.remember(x, rows)
    return results


def _map_single(
    leafwise: LeafFunction,
    shared: Any,
    columns: Sequence[tuple[Any, ...]],
    at: Callable[[int], contextlib.AbstractContextManager[None]],
) -> list[Any]:
    def kind(column: tuple[Any, ...]) -> Hashable:
        leaves, treedef = jtu.tree_flatten(column)
        return treedef, tuple((x.shape, x.dtype) for x in leaves)

    kinds = list(map(kind, columns))
    counts = collections.Counter(kinds)

    def each(i: int) -> Any:
        with at(i):
            return (leafwise.alone if counts[kinds[i]] == 1 else leafwise.one)(shared, *columns[i])

    def together(group: Sequence[int]) -> list[Any]:
        with at(group[0]):
            return leafwise.many(shared, [columns[i] for i in group])

    return in_groups(kinds, CHUNK, each, together)


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
        numbers = jtu.tree_map(lambda n: n.astype(real_dtype(dtype)) if _is_float(n) else n, numbers)
        with jax.numpy_dtype_promotion("standard"):  # a real number times a complex array is complex
            results = rule(numbers, *(x.astype(dtype) for x in arrays))
        return [new.astype(example.dtype) for new, example in zip(results, examples, strict=True)]

    rows = list(zip(zip(*columns, strict=True), zip(*like, strict=True), strict=True))
    results = map_leaves(one, jtu.tree_map(jnp.asarray, numbers), rows)
    return [[row[i] for row in results] for i in range(len(like))]


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
