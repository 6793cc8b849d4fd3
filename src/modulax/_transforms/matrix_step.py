"""One step of an `AbstractMatrixwise` rule, with the state of the tree as one dict of fields for each leaf.

`MatrixStep` maps the methods of the rule over the leaves that are matrices. `map_blocks` applies a function to their
blocks: on one device, to those of each leaf, or of many leaves in batches; over a mesh, by `over_mesh`. What changes
every few steps is computed of all leaves at once, under one `cond`: the factors, from square matrices of all sizes, or
any fields, from the updates.

Many small decompositions are computed as one (`_joined`): QR of twelve matrices with 256 rows takes a third of the time
that it takes one by one, on a CPU.
"""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.leafwise import tree_fields
from .._support.arithmetic import at_least_float32, depend_on, in_dtype
from .._support.failures import located
from .._support.module import kind_of, with_fields
from .._support.types import Updates
from .._support.varying import cond
from ..linalg._products import SIDES
from ..tree._align import align
from ..tree._leafmap import cast_all, traced_by_kind
from ..tree._math import widened
from .blocks import Layout, Leaf, Row, join_parts, over_mesh, split_parts
from .spread import batched_by_memory, divided_along, map_matrices, number_of_devices, some_at_a_time
from .stages import stages_of

Fields = dict[str, Any]  # of the state of one leaf
Shared = tuple[Any, Any]  # the rule and `now`
Function = Callable[[Any, PyTree, PyTree], Row]

_RARELY = 64 << 20  # bytes at a time of what is computed every few steps, which needs some ten times as many


class Factors(NamedTuple):
    """What is known of the factors of a batch.

    Args:
        sides: the number of sides with a factor that the matrix of each factor has, as a column.
        filled: which rows and columns fill up a block, as a row of zeros and ones for each factor; None if there are
            none.
    """

    sides: Array
    filled: Array | None


def fields_of_entries(state: Any) -> set[str]:
    """The fields with a value for each entry; those of the others belong to matrices."""
    fields = dataclasses.fields(state)
    return {f.name for f in fields if kind_of(f) == "params" and not f.metadata.get("per_matrix")}


class MatrixStep:
    """One step of a rule: what there is of each leaf.

    Args:
        rule: the rule, with numbers in the place of schedules.
        now: what `prepare` returned.
        updates: the updates.
        state: the state of the tree before the step.
        beside: the parameters, or what `update_matrix` gets in their place; or None.
        is_filtered: whether the rule has no `filter_leaf`.

    Attributes:
        layouts: how leaves are matrices, by their places, without those that pass.
        updates: the update of each leaf.
        beside: what is given beside the update of each leaf.
        fields: the fields of the state of each leaf, which change during the step.
        of_entries: the names of those fields that have a value for each entry.
        rebuild: for each field, the function that makes a tree of the values of all leaves.
        given: by the place of each leaf, its update, or what `update_matrix` gets instead once `is_filtered`.
        of_all: the shared fields that are improved.
    """

    def __init__(self, rule: Any, now: Any, updates: Updates, state: Any, beside: Any, is_filtered: bool):
        self.rule, self.now, self.state, self.is_filtered = rule, now, state, is_filtered
        self.shared: Shared = rule, now
        self.layouts: dict[int, Layout] = rule._layouts(updates)
        self.updates, treedef = jtu.tree_flatten(updates)
        self.beside = [None] * len(self.updates) if beside is None else treedef.flatten_up_to(beside)
        call = f"{type(rule).__name__}.update"
        columns = {name: align(getattr(state, name), updates, call) for name in tree_fields(state)}
        values = {name: column for name, (column, _) in columns.items()}
        self.fields: list[Fields] = [{name: values[name][i] for name in values} for i in range(len(self.updates))]
        self.of_entries = fields_of_entries(state)
        self.rebuild = {name: put for name, (_, put) in columns.items()}
        every = {i: self.updates[i] for i in self.layouts}
        self.given: dict[int, Any] = {i: in_dtype(g, at_least_float32(g.dtype)) for i, g in every.items()}
        self.of_all: Fields = {}

    def trees(self) -> dict[str, PyTree]:
        """Return the tree of each field."""
        return {name: put([fields[name] for fields in self.fields]) for name, put in self.rebuild.items()}

    def accumulate(self) -> None:
        """Add the outer products of the updates."""

        def accumulated(shared: Shared, g: Array, factors: Fields) -> tuple[Fields, Fields]:
            x, s = widened(g), self._state(factors)
            with _calling("accumulate_matrix", shared, x.dtype) as (rule, now):
                return {}, _changed(s, rule.accumulate_matrix(now, x, s), factors)

        rows = {i: (self.updates[i], self._of(i, False)) for i in self.layouts}
        rows = {i: row for i, row in rows.items() if jtu.tree_leaves(row[1])}
        found = map_blocks(accumulated, self.shared, [self.layouts[i] for i in rows], list(rows.values()))
        for i, (_, factors) in zip(rows, found, strict=True):
            self.fields[i] |= factors

    def filter(self) -> None:
        """Compute what `update_matrix` gets in place of the updates, unless it is known."""

        def filtered(_: None, x: Array, own: Fields) -> tuple[Fields, tuple[Any, Any, Fields]]:
            return self._filtered(self.shared, (x, None, own))

        if self.is_filtered:
            return
        rows = [(x, self._of(i, True)) for i, x in self.given.items()]
        for i, run in zip(self.layouts, traced_by_kind(filtered, [None] * len(rows), rows), strict=True):
            changed, (self.given[i], *_) = run()
            self.fields[i] |= changed
        self.is_filtered = True

    def _filtered(self, shared: Shared, arrays: tuple[Array, Any, Fields]) -> tuple[Fields, tuple[Any, Any, Fields]]:
        """The fields that `filter_leaf` changes, and what `update_matrix` gets of a leaf."""
        x, p, own = arrays
        s = self._state(own)
        with _calling("filter_leaf", shared, x.dtype) as (rule, now):
            x, new = rule.filter_leaf(now, x, s)
        changed = _changed(s, new, own)
        return changed, (x, p, own | changed)

    def improve_matrices(self) -> None:
        """Replace the fields of `improved` by better ones if it is time, and what `update_matrix` gets."""
        every = self.rule.improved
        names, of_all = [name for name in every if name in self.rebuild], [n for n in every if n not in self.rebuild]
        places = [i for i in self.layouts if any(self.fields[i][name] is not None for name in names)]
        self.filter()

        def improved(shared: Shared, arrays: tuple[Any, Any], factors: Fields) -> tuple[Any, Fields]:
            noise, x = arrays
            s = self._state(factors)
            with _calling("improve_matrix", shared, jtu.tree_leaves(x)[0].dtype) as (rule, now):
                x, new = rule._improve(now, x, s, noise)
                return x if rule._improves_updates else None, _changed(s, new, factors)

        def better() -> tuple[Fields, list[tuple[Any, Fields]]]:
            layouts = [self.layouts[i] for i in places]
            olds = [self._picked(i, names) for i in places]
            xs = [jtu.tree_map(layout.of, self.given[i]) for i, layout in zip(places, layouts, strict=True)]
            now, noise, drawn = self.rule._draw(self.now, self.state, xs, states := list(map(self._state, olds)))
            noise = [y if y is None else layout.back(y) for layout, y in zip(layouts, noise, strict=True)]
            olds = [old | _changed(s, new, old) for old, s, new in zip(olds, states, drawn, strict=True)]
            rows = [((y, self.given[i]), old) for i, y, old in zip(places, noise, olds, strict=True)]
            found = map_blocks(improved, (self.rule, now), layouts, rows, is_joined=True, is_rare=True)
            rows = [(x, old | changed) for old, (x, changed) in zip(olds, found, strict=True)]
            return {name: getattr(now, name) for name in of_all}, rows

        def kept() -> tuple[Fields, list[tuple[Any, Fields]]]:
            given = [self.given[i] if self.rule._improves_updates else None for i in places]
            rows = list(zip(given, [self._picked(i, names) for i in places], strict=True))
            return {name: getattr(self.state, name) for name in of_all}, rows

        self.of_all, found = cond(self.rule.is_time(self.now, self.state.count), better, kept)
        for i, (x, new) in zip(places, found, strict=True):
            self.given[i] = self.given[i] if x is None else x
            self.fields[i] |= {name: self._divided(i, y) for name, y in new.items()}

    def _divided(self, i: int, y: Any) -> Any:
        """What belongs to the matrices of a leaf, divided over a mesh: otherwise the branches would gather it."""
        if y is None or y.ndim - len(self.layouts[i].batch) < 2:
            return y
        return divided_along(y, None, self.updates[i])

    def map_whole(self, are_shared: bool) -> None:
        """Replace the first array that `update_matrix` gets of each leaf by what the rule makes of whole matrices.

        Args:
            are_shared: whether several devices may share a matrix.
        """
        self.filter()
        name, over = type(self.rule).__name__, getattr(self.rule, "over", None)
        layouts = {i: layout for i, layout in self.layouts.items() if layout.is_whole}
        rows = [jtu.tree_flatten(self.given[i]) for i in layouts]
        with jax.named_scope(name), located(name, "map_whole"):
            parts = split_parts(layouts.values(), [(self.rule._sent(x), {}) for (x, *_), _ in rows])
            xs = [part.of(x) for part, (x, _) in parts]
            ys = map_matrices(self.rule._map_parts, xs, over, f"{name}(over=...)", are_shared=are_shared)
            found = join_parts(layouts.values(), [(part.back(y), {}) for (part, _), y in zip(parts, ys, strict=True)])
        for i, (y, _), ((_, *others), structure) in zip(layouts, found, rows, strict=True):
            self.given[i] = structure.unflatten([widened(y), *others])

    def update(self, is_local: bool) -> list[Array]:
        """Return all updates in their dtypes, and change the states; on a mesh, nothing moves if `is_local`."""

        def updated(
            shared: Shared, arrays: tuple[Any, Any, Fields], factors: Fields
        ) -> tuple[tuple[Array, Fields], Fields]:
            x, p, own = arrays
            s = self._state(own | factors)
            with _calling("update_matrix", shared, jtu.tree_leaves(x)[0].dtype) as (rule, now):
                u, new = rule.update_matrix(now, x, s, widened(p))
                if u.shape != (shape := jtu.tree_leaves(x)[0].shape):
                    raise ValueError(f"An update of shape {shape} became one of shape {u.shape}.")
                return (u, _changed(s, new, own)), _changed(s, new, factors)

        # Otherwise one device computes each leaf by itself, and the filter is traced with the update, in less time.
        layouts = self.layouts.items()
        if self.rule.is_joined or any(x.parts or number_of_devices(self.updates[i]) > 1 for i, x in layouts):
            self.filter()
        rows = [((x, self.beside[i], self._of(i, True)), self._of(i, False)) for i, x in self.given.items()]
        first = None if self.is_filtered else self._filtered
        options: dict[str, Any] = {"first": first, "is_joined": self.rule.is_joined, "is_local": is_local}
        found = map_blocks(updated, self.shared, self.layouts.values(), rows, **options)
        out = list(self.updates)
        for i, (arrays, factors) in zip(self.layouts, found, strict=True):
            kept, (u, own) = ({}, arrays) if first is None else arrays
            out[i] = in_dtype(u, out[i].dtype)
            self.fields[i] |= kept | own | factors
        return out

    def improve(self) -> None:
        """Replace the factors by better ones if it is time, and carry over what depends on them."""
        if unknown := [name for name in self.rule.factors if name not in SIDES]:
            raise ValueError(
                f"`{type(self.rule).__name__}.factors` names the square matrices of rows `left` and those of columns "
                f"`right`; it has `{unknown[0]}`."
            )
        places = [(i, name) for i in self.layouts for name in self.rule.factors if self.fields[i][name] is not None]
        if not places:
            return
        leaves, names = list(dict.fromkeys(i for i, _ in places)), {*self.rule.carried, *self.rule.factors.values()}

        # Nothing else, because XLA for GPU copies what a branch returns unchanged.
        def kept() -> list[Fields]:
            return [self._picked(i, names) for i in leaves]

        found = cond(self.rule.is_time(self.now, self.state.count), lambda: self._improved(places, leaves), kept)
        for i, new in zip(leaves, found, strict=True):
            self.fields[i] |= new

    def _improved(self, places: list[tuple[int, str]], leaves: list[int]) -> list[Fields]:
        """The factors of some leaves, computed from the square matrices at these places, and what is carried over."""

        def improve(x: Array, factor: Array, sides: Array, filled: Array | None = None) -> tuple[Array, ...]:
            dtype, wide = x.dtype, at_least_float32(x.dtype)
            with _calling("improve_factor", self.shared, wide) as (rule, now):
                found = rule.improve_factor(now, *widened((x, factor)), Factors(sides[..., 0], filled))
            return tuple(in_dtype(y, dtype) if y.dtype == wide else y for y in found)

        def carry(shared: Shared, own: Fields, factors: tuple[Fields, Fields, Fields]) -> tuple[Fields, Fields]:
            old, *found = factors
            if is_flat:
                before = next(x.shape[:-2] for x in old.values() if x is not None)
                found = jtu.tree_map(lambda y: jax.lax.reshape(y, (*before, *y.shape[1:])), found)
            new, others = found
            s, after = self._state(own | old), self._state(own | old | new)
            with _calling("carry_matrix", shared, at_least_float32(jtu.tree_leaves(own)[0].dtype)) as (rule, now):
                return _changed(s, rule.carry_matrix(now, s, after, others), own), new

        of_factor, carried = self.rule.factors, self.rule.carried
        lists = [list(column) for column in zip(*(self._about(*place) for place in places), strict=True)]
        is_filled = any(map(np.any, lists[3]))
        # Reshaped by `carry`, which is traced once for each shape.
        few = not any(_is_large(self.fields[i]) for i in leaves)
        is_flat = bool(carried) and few and number_of_devices(lists[0][0]) == 1
        batches = _in_batches(batched_by_memory(improve), *(lists if is_filled else lists[:3]), is_flat=is_flat)
        old = {i: self._picked(i, of_factor.values()) for i in leaves}
        new, others = (collections.defaultdict[int, Fields](dict) for _ in range(2))
        for (i, name), (factor, *more) in zip(places, batches, strict=True):
            new[i][of_factor[name]] = in_dtype(factor, old[i][of_factor[name]].dtype)
            others[i][name] = more
        if not carried:
            return [old[i] | new[i] for i in leaves]
        rows = [(self._picked(i, carried), (old[i], new[i], others[i])) for i in leaves]
        found = map_blocks(carry, self.shared, [self.layouts[i] for i in leaves], rows, is_rare=not is_flat)
        return [old[i] | own | factors for i, (own, factors) in zip(leaves, found, strict=True)]

    def _about(self, i: int, name: str) -> tuple[Any, Any, np.ndarray, np.ndarray]:
        """Square matrices and their factors, the number of sides with one, and which rows only fill a block up."""
        x, every = self.fields[i][name], [self.fields[i][each] is not None for each in self.rule.factors]
        filled = np.broadcast_to(
            self.layouts[i].filled(SIDES.index(name))[..., None, :], (*x.shape[:-2], 1, x.shape[-1])
        )
        return x, self.fields[i][self.rule.factors[name]], np.full((*x.shape[:-2], 1, 1), sum(every)), filled

    def _of(self, i: int, is_of_entries: bool) -> Fields:
        """The fields of a leaf with values for its entries, or for its matrices."""
        return {name: x for name, x in self.fields[i].items() if (name in self.of_entries) == is_of_entries}

    def _picked(self, i: int, names: Iterable[str]) -> Fields:
        return {name: self.fields[i][name] for name in names}

    def _state(self, fields: Fields) -> Any:
        """The state of a leaf, in at least float32."""
        missing = dict.fromkeys(tree_fields(self.state))
        return with_fields(self.state, **(missing | widened(fields)))


@contextlib.contextmanager
def _calling(method: str, shared: Shared, dtype: Any) -> Iterator[Shared]:
    """Give the rule and `now` in the dtype of what a method of the rule is called with."""
    name = type(shared[0]).__name__
    # A real number times a complex array is complex.
    with jax.numpy_dtype_promotion("standard"), jax.named_scope(name), located(name, method):
        yield cast_all(shared, dtype)


def _changed(before: Any, after: Any, fields: Fields) -> Fields:
    """The fields of a state that a rule has changed, in the dtypes that they are kept in."""
    changed = {}
    for name, kept in fields.items():
        old, new = getattr(before, name), getattr(after, name)
        if new is not old:
            if jnp.shape(new) != jnp.shape(old):
                raise ValueError(f"The field `{name}` of shape {jnp.shape(old)} became one of shape {jnp.shape(new)}.")
            changed[name] = in_dtype(new, kept.dtype)
    return changed


def map_blocks(
    function: Function,
    shared: PyTree,
    layouts: Iterable[Layout],
    rows: Sequence[Row],
    *,
    first: Callable[[Any, PyTree], tuple[Any, PyTree]] | None = None,
    is_joined: bool = False,
    is_local: bool = False,
    is_rare: bool = False,
) -> list[Row]:
    """Apply a function to the blocks of each leaf, of which each device of a mesh computes some.

    Over a mesh, the function is divided into stages (`stages_of`). For those on whole blocks, leaves with few of them
    are joined, so that all devices have about as many. One batch follows the other, or arrays of all of them would be
    on their way at once.

    Args:
        function: of values that all leaves share, a tree of blocks, and a tree of what belongs to them, with any axes
            before those of a block. It returns two such trees.
        shared: the values that all leaves share.
        layouts: how each leaf is blocks.
        rows: for each leaf, the first tree, of arrays in the shape of the leaf, and the second one. Of several matrices
            that are joined in one array, each is computed as an array of its own.
        first: what is computed of the shared values and the first tree of a leaf before it becomes blocks, where one
            device computes each leaf by itself. It returns a result, which comes before that of the function, and a
            tree in place of the first one.
        is_joined: whether leaves are joined on one device, too: those whose blocks have one shape in one batch. What is
            decomposed or divided by triangular matrices depends on the first array, and the last result on that.
        is_local: whether a mesh computes the results where the arrays are.
        is_rare: whether this happens every few steps. Then one device computes some of many blocks at a time.

    Returns:
        for each leaf, the results of the function.
    """
    layouts = list(layouts)
    parts = split_parts(layouts, rows)
    every = [_leaf(i, layout, row, is_local, is_rare) for i, (layout, row) in enumerate(parts)]
    alone = [leaf for leaf in every if leaf.is_apart and not is_joined]
    call = functools.partial(_alone, first, function, shared)
    runs = traced_by_kind(call, [leaf.layout for leaf in alone], [leaf.row for leaf in alone])
    out = {leaf.place: run() for leaf, run in zip(alone, runs, strict=True)}
    others = [leaf for leaf in every if leaf.place not in out]
    out |= _computed(function, shared, others, _RARELY if is_rare else None)
    return join_parts(layouts, [out[leaf.place] for leaf in every])


def _leaf(place: int, layout: Layout, row: Row, is_local: bool, is_rare: bool) -> Leaf:
    devices = 1 if is_local or layout.is_array else number_of_devices(jtu.tree_leaves(row)[0])
    return Leaf(place, layout, row, devices, is_rare and devices == 1 and bool(layout.batch) and _is_large(row))


def _alone(first: Any, function: Function, shared: Any, layout: Layout, arrays: PyTree, others: PyTree) -> Row:
    """The results for one leaf."""
    kept, arrays = (None, arrays) if first is None else first(shared, arrays)
    found, others = function(shared, jtu.tree_map(layout.of, arrays), others)
    found = jtu.tree_map(layout.back, found)
    return found if first is None else (kept, found), others


def _computed(function: Function, shared: Any, leaves: Sequence[Leaf], most: int | None) -> dict[int, Row]:
    """The results for leaves by their places: one batch after the other, each of at most so many bytes at a time."""
    kinds: dict[Hashable, list[Leaf]] = collections.defaultdict(list)
    for leaf in leaves:
        kinds[leaf.kind].append(leaf)
    out, after = {}, list[Array]()
    for members in kinds.values():
        if members[0].devices == 1:
            found = _in_a_batch(function, shared, members, after, most)
            after = jtu.tree_leaves(found[-1])[-1:]
        else:
            found = over_mesh(stages_of(function, shared, *members[0].of_one), members)
        out |= {leaf.place: row for leaf, row in zip(members, found, strict=True)}
    return out


def _in_a_batch(
    function: Function, shared: Any, leaves: Sequence[Leaf], after: Sequence[Array], most: int | None
) -> list[Row]:
    """The results for leaves on one device whose blocks have one shape: in one batch, or some bytes at a time."""
    layouts, rows = [leaf.layout for leaf in leaves], [leaf.row for leaf in leaves]
    trees = [(jtu.tree_map(layout.of, arrays), others) for layout, (arrays, others) in zip(layouts, rows, strict=True)]
    batches = [layout.batch for layout in layouts]
    first, *others = (_joined(ys, batches) for ys in zip(*map(jtu.tree_leaves, trees), strict=True))
    given = jtu.tree_structure(trees[0]).unflatten([_computed_after(after, first), *others])
    call = functools.partial(function, shared)
    arrays, treedef = jtu.tree_flatten(given)
    structure: Any = None

    def computed(*xs: Array) -> list[Array]:
        nonlocal structure
        ys, structure = jtu.tree_flatten((jax.vmap(call) if layouts[0].is_array else call)(*treedef.unflatten(xs)))
        return ys

    results = computed(*arrays) if most is None else some_at_a_time(computed, most, *arrays)
    parts = [_separate(y, batches) for y in results]
    found = [structure.unflatten([ys[k] for ys in parts]) for k in range(len(rows))]
    return [(jtu.tree_map(layout.back, ys), own) for layout, (ys, own) in zip(layouts, found, strict=True)]


def _is_large(tree: PyTree) -> bool:
    """Whether arrays are more than one device takes at a time of what is computed every few steps."""
    return sum(x.nbytes for x in jtu.tree_leaves(tree)) > _RARELY


def _in_batches(
    function: Callable[..., Sequence[Array]],
    *lists: Sequence[Array | np.ndarray],
    is_flat: bool = False,
) -> list[tuple[Array, ...]]:
    """Apply a function to corresponding arrays of lists, with all matrices of one shape and dtype joined in one batch.

    Args:
        function: of one array of each list, with one batch axis, which returns arrays with that axis first. What it
            decomposes or divides by triangular matrices depends on its first argument, and its first result on that.
        lists: arrays of matrices on the last two axes, with the same axes before these at one place.
        is_flat: whether results have one batch axis each, which costs less to trace than the axes of the arrays.
    """
    kinds: dict[Hashable, list[int]] = collections.defaultdict(list)
    for i, x in enumerate(lists[0]):
        kinds[x.shape[-2:], x.dtype].append(i)
    out: list[tuple[Array, ...]] = [()] * len(lists[0])
    after: Sequence[Array] = ()
    for places in kinds.values():
        batches = [lists[0][i].shape[:-2] for i in places]
        first, *others = (_joined([xs[i] for i in places], batches) for xs in lists)
        results = function(_computed_after(after, first), *others)
        after = results[:1]
        for i, *parts in zip(places, *(_separate(y, batches, is_flat) for y in results), strict=True):
            out[i] = tuple(parts)
    return out


def _joined(xs: Sequence[Any], batches: Sequence[tuple[int, ...]]) -> Array:
    """Return what belongs to the matrices of several arrays, with these batch axes, in one batch."""
    shape = xs[0].shape[len(batches[0]) :]
    if isinstance(xs[0], np.ndarray):  # known when the program is made
        return jnp.asarray(np.concatenate([x.reshape(-1, *shape) for x in xs]))
    # On one device by rows, where what belongs to a single matrix has its shape already; a mesh may divide the rows.
    inner = shape[1:] if number_of_devices(xs[0]) == 1 else shape
    flat = [_reshaped(x, (math.prod(x.shape[: x.ndim - len(inner)]), *inner)) for x in xs]
    return _reshaped(jax.lax.concatenate(flat, 0), (sum(map(math.prod, batches)), *shape))


def _separate(y: Array, batches: Sequence[tuple[int, ...]], is_flat: bool = False) -> Sequence[Array]:
    """Return the entries of a batch for each of several arrays, with these batch axes, or with one."""
    # Not by rows: a TPU would store the parts of rows, and not of a batch.
    parts = jax.lax.split(y, list(map(math.prod, batches)))
    return parts if is_flat else [_reshaped(part, (*b, *y.shape[1:])) for part, b in zip(parts, batches, strict=True)]


def _reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    # By `lax`: hundreds of calls of `jnp` take longer to trace than what is computed.
    return x if x.shape == shape else jax.lax.reshape(x, shape)


def _computed_after(before: Sequence[Array], x: Array) -> Array:
    """Return the same array, which a program has only once it has others.

    XLA for CPU calls LAPACK for the matrices of a batch in the threads that also run the batches, and waits for them:
    several batches at once may wait for each other forever. It drops optimization barriers.
    """
    for other in before:
        x = depend_on(x, jax.lax.reduce_sum(jax.lax.abs(other), range(other.ndim)))
    return x
