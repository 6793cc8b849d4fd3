"""`Stacked`: many small parameters of one shape, which are updated by one operation each.

`init` groups the parameters, `_Layout`. In every tree like the parameters in the state, the arrays of a group are one
array with a leading axis, a stack, at the place of the first; the others are None. `update` runs the inner transform
under `jax.vmap` on each group, as if its rows were models of one parameter, and once, without stacks, on all other
parameters. Values that all parameters share, such as a step count, are in the state once, and are not mapped over.

So the inner transform must do to each array what it would do to that array alone: `refusal` lists what doesn't.
The rules at the end of a chain that act on single entries are split off (`without_end`), and run without stacks.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from .._protocol.container import AbstractContainer, AbstractOptimizer, required_part, start_counted, step_counted
from .._protocol.masks import select
from .._protocol.transform import AbstractTransform, everything_in, in_dtype_of, update_dtypes
from .._support.arithmetic import at_least_float32, common_dtype
from .._support.keys import is_key_data, is_typed_key
from .._support.module import nested
from .._support.types import Params, State, Updates
from ..tree._align import align
from ..tree._paths import Names, key_names, longest_prefix, named_leaves
from ..tree._stacks import AbstractStackedState
from ..tree._state import map_sections, one_level
from .arraywise import drawing, parts_on_stacks, refusal, refused, without_end

# Copying a larger parameter into a stack costs more than it saves.
_MAX_SIZE = 8192


class _Group(NamedTuple):
    """Parameters in one stack: their shape, and their paths in the order of the rows."""

    shape: tuple[int, ...]
    members: tuple[Names, ...]


class _Layout:
    """Which parameters are in stacks, and the number of axes of the first stack; static, and compared by value."""

    def __init__(self, groups: tuple[_Group, ...] = (), ndim: int = 0):
        self.groups, self.ndim = groups, ndim
        self._hash = hash((groups, ndim))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is _Layout and (self.groups, self.ndim) == (other.groups, other.ndim)

    def __reduce__(self) -> Any:
        return _Layout, (self.groups, self.ndim)

    def __repr__(self) -> str:
        return f"{len(self.groups)} stacks of {sum(len(group.members) for group in self.groups)} parameters"


_ALONE = _Layout()


class StackedState(AbstractStackedState):
    """State of `Stacked`: the inner state, in which some arrays are stacks, each at the place of its first row.

    `modulax.tree.unstack(state)` has an array for each parameter. `layout` is static and says what was stacked.
    """

    layout: _Layout = eqx.field(static=True)
    inner_state: State = nested()

    def unstacked(self) -> "StackedState":
        """Return this state with an array for each parameter."""
        rows = {names: (g.members[0], i) for g in self.layout.groups for i, names in enumerate(g.members)}
        axis = self._axis()

        def single(tree: PyTree) -> PyTree:
            stacks = {group.members[0]: _at(tree, group.members[0]) for group in self.layout.groups}

            def one(path: Any, x: Any) -> Any:
                of = longest_prefix(key_names(path), rows)
                if of is None or (x is None and rows[of][1] == 0):
                    return x
                first, i = rows[of]
                return jtu.tree_map(lambda stack: _row(stack, i, axis), x if i == 0 else stacks[first])

            return jtu.tree_map_with_path(one, tree, is_leaf=_is_none)

        return StackedState(_ALONE, _with_trees(self.inner_state, map(single, _trees(self.inner_state))))

    def stacked(self, single: "StackedState") -> "StackedState":
        """Return a state with an array for each parameter in the form of this one.

        Args:
            single: the state.
        """
        groups = {group.members[0]: group.members for group in self.layout.groups}
        axis = self._axis()

        def in_form(form: PyTree, tree: PyTree) -> PyTree:
            found = dict(named_leaves(tree))

            def one(path: Any, old: Any) -> Any:
                names = key_names(path)
                first = longest_prefix(names, groups)
                if old is None or first is None:
                    return None if old is None else found[names]
                return _join_like([found[member + names[len(first) :]] for member in groups[first]], old, axis)

            return jtu.tree_map_with_path(one, form, is_leaf=_is_none)

        trees = map(in_form, _trees(self.inner_state), _trees(single.inner_state))
        return StackedState(self.layout, _with_trees(single.inner_state, trees))

    def together(self) -> list[list[Names]]:
        """Return the paths of the parameters that are in one stack, for each group of them."""
        return [list(group.members) for group in self.layout.groups]

    def _axis(self) -> int:
        """The axis of the rows, which comes after those of a batch of states."""
        trees = _trees(self.inner_state) if self.layout.groups else []
        stacks = jtu.tree_leaves([_at(tree, self.layout.groups[0].members[0]) for tree in trees])
        return len(stacks[0].shape) - self.layout.ndim if stacks else 0


class Stacked(AbstractContainer):
    """Updates many small parameters together, with their state in stacks of arrays of one shape.

        optimizer = Stacked(AdamW(1e-3))

    Use it for models with hundreds of small arrays, for which launching an operation takes longer than running it. One
    array holds the moments of up to `chunk` parameters of one shape and dtype from step to step. Each step stacks the
    gradients, and returns updates for the single parameters. Parameters with more than 8192 entries, and a few leftover
    ones, are updated as without `Stacked`. The benchmarks list the times of a step and of its compilation for 512
    arrays of 32 entries, and for a transformer's arrays.

    The inner transform is mapped over the rows by `jax.vmap`, so that a norm is that of one array, and a matrix stays a
    matrix. Results are those without `Stacked`, up to rounding. `inner` may be a rule on one array, a chain or an
    optimizer of such rules, and a container that adds nothing which depends on other arrays or on paths
    (`is_arraywise`), such as `MasterWeights`, `ParamEMA`, `MultiSteps` and `LowBit(stochastic=False)`.

    Put anything else outside `Stacked`, which refuses transforms that combine all arrays, such as a global norm, select
    some by a mask or a label, or draw random numbers. Weight decay with a mask, and multipliers by path, are accepted
    at the end of a chain of rules, as in `AdamW(1e-3, mask=...)`. The error shows where `Stacked` may be.

        Chain(ClipByGlobalNorm(1.0), Stacked(AdamW(1e-3)))
        Partition({"embedding": SGD(0.1), "rest": Stacked(AdamW(1e-3))}, labels)

    Checkpoints have an entry for each parameter. So a run can continue with or without `Stacked`, by
    `modulax.checkpoint.restore(..., strict=False)`. `modulax.tree.get(state, "mu")` returns a tree with an array for
    each parameter, and `modulax.tree.unstack(state)` such a state.

    A compiled `init` doesn't know the sharding of parameters, except on explicit axes of a mesh. If parameters of one
    shape are sharded in different ways, keep them apart by a `Partition`; `state_sharding` raises an error otherwise.

    Args:
        inner: the inner transform.
        chunk: the largest number of parameters in a stack; 1 switches stacking off. Stacks of one shape have one size,
            and a few parameters may be left over, which are not stacked.
    """

    _keeps = "direction"

    inner: AbstractTransform = required_part()
    chunk: int = eqx.field(static=True, default=16)

    def check(self) -> None:
        """Check that the chunk is a positive integer, and that the inner transform can be mapped over a stack."""
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or self.chunk < 1:
            raise ValueError(f"`Stacked(chunk=...)` must be a positive integer such as 16, got {self.chunk!r}.")
        for mapped in parts_on_stacks(self.inner):
            if why := refusal(mapped.transform):
                raise ValueError(refused(self.inner, mapped, why))

    def init(self, params: Params) -> StackedState:
        """Return the initial state of the inner transform, with the arrays of small parameters in stacks."""
        names, leaves = zip(*named_leaves(params), strict=True) if jtu.tree_leaves(params) else ((), ())
        groups = self._groups(names, leaves)
        state = _start(self.inner, select(params, _alone(groups, len(leaves))))
        if any(is_key_data(x) or is_typed_key(x) for x in jtu.tree_leaves(_shared(state))):
            why = "draws random numbers, which would be equal in every row"
            raise ValueError(refused(self.inner, drawing(self.inner), why, is_random=True))
        columns = [align(tree, params, "Stacked.init") for tree in _trees(state)]
        for group in groups:
            path = ".".join(names[group[0]])

            def init(p: Array, path: str = path) -> list[PyTree]:
                return [tree[path] for tree in _trees(_start(self.inner, {path: p}))]

            stacks = jax.vmap(init)(jnp.stack([leaves[i] for i in group]))
            for (values, _), stack in zip(columns, stacks, strict=True):
                values[group[0]] = stack
        # A state without trees like the parameters has nothing to stack.
        found = jtu.tree_leaves([values[groups[0][0]] for values, _ in columns]) if groups else []
        if not found:
            return StackedState(_ALONE, self.inner.init(params))
        layout = _Layout(
            tuple(_Group(leaves[g[0]].shape, tuple(names[i] for i in g)) for g in groups),
            found[0].ndim,
        )
        return StackedState(layout, _with_trees(state, [rebuild(values) for values, rebuild in columns]))

    def update(
        self, updates: Updates, state: StackedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StackedState]:
        """Run one step of the inner transform."""
        layout = state.layout
        if not layout.groups:
            updates, new = self.inner.update(updates, state.inner_state, params, **extra)
        else:
            updates, new = _step(self.inner, updates, state.inner_state, params, extra, _places(updates, layout))
        return updates, StackedState(layout, new)

    # Overridden because the inner transform reads its own state.
    def eval_params(self, state: StackedState, params: Params) -> Params:
        """Return the evaluation parameters of the inner transform.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return self.inner.eval_params(state.unstacked().inner_state, params)

    def _groups(self, names: Sequence[Names], leaves: Sequence[Array]) -> list[list[int]]:
        """The indices of the parameters in each stack.

        Stacks of one kind have one size, since another size is another set of kernels to compile; those left over stay
        single.
        """
        kinds: dict[Any, list[int]] = {}
        counts = collections.Counter(names)
        for i, p in enumerate(leaves):
            if 0 < p.size <= _MAX_SIZE and counts[names[i]] == 1:  # members are found by their paths
                # The type also says how an array is sharded on explicit mesh axes: others cannot be stacked with it.
                kinds.setdefault(jax.typeof(p), []).append(i)
        groups = []
        for found in kinds.values():
            # Stacks of one shape have one size: a smaller last one would need kernels of its own for each offset at
            # which updates are taken out of it. Larger chunks compile longer, and smaller ones run longer.
            size = max(2, len(found) // -(-len(found) // self.chunk))
            stops = range(size, len(found) + 1, size) if self.chunk > 1 else ()
            groups += [found[stop - size : stop] for stop in stops]
        return groups


def _start(transform: AbstractTransform, params: Params) -> State:
    """The initial state for some of the parameters, without the rules at the end, which may know paths."""
    if isinstance(transform, AbstractOptimizer):
        return start_counted(transform, lambda now: _start(now.transform(), params))
    return without_end(transform)[0].init(params)


def _step(
    transform: AbstractTransform, updates: Updates, state: State, params: Params | None, extra: Any, groups: Any
) -> tuple[Updates, State]:
    """A step of the inner transform, or of what it is made of, up to the rules that run without stacks."""
    if isinstance(transform, AbstractOptimizer):
        transform._check_call(updates, params, extra)
        return step_counted(
            transform, state, extra, lambda now: _step(now.transform(), updates, state.inner, params, extra, groups)
        )
    rules, end = without_end(transform)
    new, state = _step_on_stacks(rules, updates, state, params, extra, groups, bool(end))
    if not end:
        return new, state
    # These rules have no state, so that a fresh one is the right one.
    new, _ = end.update(new, end.init(updates), params, **extra)
    wide = update_dtypes(transform)
    return jtu.tree_map(lambda u, like: in_dtype_of(like, u, wide), new, updates), state


def _step_on_stacks(
    transform: AbstractTransform,
    updates: Updates,
    state: State,
    params: Params | None,
    extra: Any,
    groups: Sequence[tuple[str, Sequence[int]]],
    is_wide: bool,
) -> tuple[Updates, State]:
    """A step under `jax.vmap` on each group, and one on all other parameters together.

    With `is_wide`, the updates are in at least float32, as they are between two rules on one array.
    """
    leaves, treedef = jtu.tree_flatten(updates)
    # Parameters that nothing reads are not stacked.
    is_read = any("params" in inside.needs for inside in everything_in(transform))
    held = jtu.tree_leaves(params) if is_read else [None] * len(leaves)
    columns = [align(tree, updates, "Stacked.update") for tree in _trees(state)]
    alone = _alone(dict(groups).values(), len(leaves))

    rest = _with_trees(state, [_single(treedef, values, alone) for values, _ in columns])
    given = _single(treedef, [_widened(u, is_wide and alone[i]) for i, u in enumerate(leaves)], alone)
    out, new = transform.update(given, rest, _single(treedef, held, alone) if is_read else None, **extra)
    new_leaves = dict(enumerate(treedef.flatten_up_to(out)))
    new_columns = [treedef.flatten_up_to(tree) for tree in _trees(new)]
    step_of_group = functools.partial(_step_of_group, transform, state, extra, is_wide)
    steps: dict[Any, Callable[..., Any]] = {}
    for path, group in groups:
        # Groups of one kind share a function, which is traced once.
        step = steps.setdefault(jax.typeof(leaves[group[0]]), jax.jit(functools.partial(step_of_group, path)))
        stacks = [values[group[0]] for values, _ in columns]
        rows, stacks = step([leaves[i] for i in group], stacks, [held[i] for i in group])
        new_leaves |= zip(group, rows, strict=True)
        for values, stack in zip(new_columns, stacks, strict=True):
            values[group[0]] = stack
    rebuilt = [rebuild(values) for values, (_, rebuild) in zip(new_columns, columns, strict=True)]
    return treedef.unflatten(new_leaves.values()), _with_trees(new, rebuilt)


def _single(treedef: Any, values: Sequence[Any], alone: Sequence[bool]) -> PyTree:
    return treedef.unflatten([x if is_alone else None for x, is_alone in zip(values, alone, strict=True)])


def _step_of_group(
    transform: AbstractTransform,
    state: State,
    extra: Any,
    is_wide: bool,
    path: str,
    updates: Sequence[Array],
    stacks: Sequence[PyTree],
    params: Sequence[Array | None],
) -> tuple[list[Array], list[PyTree]]:
    """A step on the parameters of one stack: the updates, and the stacks of the state after the step."""

    def one(u: Array, rows: Sequence[PyTree], p: Array | None) -> tuple[Array, list[PyTree], State]:
        single = _with_trees(state, [{path: row} for row in rows])
        new_u, new = transform.update({path: u}, single, None if p is None else {path: p}, **extra)
        return new_u[path], [tree[path] for tree in _trees(new)], _shared(new)

    dtype = common_dtype(*(u.dtype for u in updates))
    stack = _widened(jnp.stack([u.astype(dtype) for u in updates]), is_wide)
    try:
        # JAX raises an error if a shared value depends on the rows.
        step = jax.vmap(one, out_axes=(0, 0, None))
        held = [p for p in params if p is not None]
        new, stacks, _ = step(stack, stacks, jnp.stack(held) if held else None)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError(
            "`Stacked` updates arrays of one shape together, each as if it were alone, and "
            f"`{type(transform).__name__}` computes a value that all parameters share from single ones. Leave what "
            "does so outside `Stacked`."
        ) from error
    rows = [jax.lax.index_in_dim(new, i, keepdims=False) for i in range(len(updates))]
    wide = update_dtypes(transform)
    return rows if is_wide else [in_dtype_of(u, x, wide) for u, x in zip(updates, rows, strict=True)], stacks


def _widened(u: Array, is_wide: bool) -> Array:
    return u.astype(at_least_float32(u.dtype)) if is_wide else u


def _places(updates: Updates, layout: _Layout) -> list[tuple[str, list[int]]]:
    """The path of the first member of each group, and the indices of all among the leaves of the updates."""
    found = {names: (i, u.shape) for i, (names, u) in enumerate(named_leaves(updates))}
    for shape, members in layout.groups:
        for names in members:
            _, given = found.get(names, (0, None))
            if given != shape:
                has = f"no leaf `{'.'.join(names)}`" if given is None else f"shape {given} at `{'.'.join(names)}`"
                raise ValueError(
                    f"`Stacked.update`: the updates must have the leaves and the shapes of the parameters that `init` "
                    f"was called with; but they have {has}, where the parameter has shape {shape}."
                )
    return [(".".join(group.members[0]), [found[names][0] for names in group.members]) for group in layout.groups]


def _alone(groups: Iterable[Sequence[int]], size: int) -> list[bool]:
    """Which leaves are in no group."""
    grouped = {i for group in groups for i in group}
    return [i not in grouped for i in range(size)]


# --- The trees like the parameters in a state.


def _trees(state: State) -> list[PyTree]:
    found: list[PyTree] = []
    map_sections(lambda kind, _, value: found.append(value) if kind == "params" else None, state)
    return found


def _with_trees(state: State, trees: Iterable[PyTree]) -> State:
    remaining = iter(trees)
    return map_sections(lambda kind, _, value: next(remaining) if kind == "params" else value, state)


def _shared(state: State) -> State:
    """The state without the trees like the parameters."""
    return map_sections(lambda kind, _, value: None if kind == "params" else value, state)


def _at(tree: PyTree, names: Names) -> PyTree:
    """The node of a tree at these names."""
    for key, child in one_level(tree)[0] if names else ():
        own = key_names(key)
        if names[: len(own)] == own:
            return _at(child, names[len(own) :])
    return tree


def _is_none(x: Any) -> bool:
    return x is None


def _row(x: Any, i: int, axis: int) -> Any:
    """Return an element along an axis of an array, or of its shape."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x[(slice(None),) * axis + (i,)] if isinstance(x, np.ndarray) else jnp.take(x, i, axis, mode="clip")
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        spec = list(sharding.spec) + [None] * (len(x.shape) - len(sharding.spec))
        spec = PartitionSpec(*spec[:axis], *spec[axis + 1 :])
        sharding = NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return jax.ShapeDtypeStruct(x.shape[:axis] + x.shape[axis + 1 :], x.dtype, sharding=sharding)


def _join_like(rows: Sequence[Any], old: Any, axis: int) -> Any:
    """Stack arrays along an axis as one of the kind of another stack, in the same place."""
    if isinstance(old, np.ndarray):
        return np.stack(rows, axis)
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in rows):
        shape = (*rows[0].shape[:axis], len(rows), *rows[0].shape[axis:])
        return jax.ShapeDtypeStruct(shape, rows[0].dtype, sharding=getattr(old, "sharding", None))
    new = jnp.stack(rows, axis)
    if isinstance(old, Tracer):
        return new
    is_placed = isinstance(old, jax.ShapeDtypeStruct) or old.committed
    return jax.device_put(new, old.sharding) if is_placed and old.sharding is not None else new
