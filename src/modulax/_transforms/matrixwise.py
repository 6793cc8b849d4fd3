"""Transforms that are a rule on one matrix: what `AbstractLeafwise` is for one array.

`AbstractMatrixwise._step` does one step. It pairs the state with the updates by path, as one dict of fields per leaf,
and maps the methods of the rule over the leaves that are matrices (`map_blocks`, which lays them out and divides them
over the devices of a mesh). `_improved` computes the factors that change every few steps, of all leaves at once.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree

from .._protocol.counted import AbstractCounted
from .._protocol.leafwise import StateT, tree_fields
from .._protocol.schedule_values import resolve
from .._roles.find import as_roles
from .._support.arithmetic import (
    at_least_float32,
    default_float,
    in_dtype,
    is_due,
    no_steps,
    safe_increment,
)
from .._support.failures import located
from .._support.module import kind_of, with_fields
from .._support.placement import shard_like, typed_like, undivided
from .._support.types import Params, Updates
from .._support.varying import cond
from ..linalg._eigenbasis import SIDES
from ..tree._align import align
from ..tree._leafmap import cast_all
from ..tree._math import widened
from .batches import in_batches, in_float32
from .blocks import Layout, map_blocks
from .matrices import matrices_of
from .spread import batched_by_memory, number_of_devices, tree_on_auto_axes

Fields = dict[str, Any]  # of the state of one leaf
Shared = tuple["AbstractMatrixwise", Any]  # the rule and `now`


class Factors(NamedTuple):
    """What is known of the factors of a batch.

    Args:
        sides: the number of sides with a factor that the matrix of each factor has, as a column.
        filled: which rows and columns fill up a block, as a row of zeros and ones for each factor; None if there are
            none.
    """

    sides: Array
    filled: Array | None


class AbstractMatrixwise(AbstractCounted, Generic[StateT]):
    r"""A transform that treats every matrix alike: implement its equations for one matrix, and nothing else.

    In a matrix, rows are inputs and columns are outputs, whatever the framework and the layer: the base class finds the
    matrices by the roles of the parameters, or as `weight_dimension_numbers` says. They are on the last two axes of an
    array in at least float32, after any axes of a batch. The state of one matrix and of the whole tree are the same
    class, as in `AbstractLeafwise`. A field of it has the shape of the matrix, or is declared with
    `like_params(per_matrix=True)`:

        class WhitenState(AbstractState):
            left: PyTree = like_params(per_matrix=True)
            count: Array | None = counter()

        class Whiten(AbstractMatrixwise[WhitenState]):
            decay: Number = number(0.9)

            def init_matrix(self, x):
                return WhitenState(jnp.zeros((*x.shape[:-1], x.shape[-2]), x.dtype))

            def update_matrix(self, now, g, s, p):
                left = self.decay * s.left + g @ jnp.matrix_transpose(g)
                return inverse_root(left) @ g, WhitenState(left)

    A rule may have a field `weight_dimension_numbers`, which says what is a matrix as in `ScaleByMuon`, and a static
    field `block_size`, the longest side of the blocks that matrices are divided into.

    Schedules are replaced by their values, matrices of one shape are traced once, and results are cast back. Over a
    mesh, each device computes whole matrices, and only what products and decompositions read and return is moved.
    """

    factors: ClassVar[Mapping[str, str]] = {}
    """The fields that `improve_factor` computes every few steps, by the fields of square matrices that it reads.

    The latter are `left`, which belongs to the rows, and `right`, which belongs to the columns.
    """

    carried: ClassVar[tuple[str, ...]] = ()
    """Fields that `carry_matrix` changes whenever these change."""

    improves_first: ClassVar[bool] = False
    """Whether the factors of a step are improved before its update is computed."""

    others: ClassVar[Literal["pass", "array", "column"]] = "pass"
    """What becomes of arrays that aren't matrices: they pass, or are given to the rule as they are, or as a column."""

    is_for_hidden_layers: ClassVar[bool] = False
    """Whether to leave out embeddings and heads, where their roles are known."""

    @abc.abstractmethod
    def init_matrix(self, x: Array) -> StateT:
        """Return the initial state of a batch of matrices.

        Args:
            x: the parameter, as matrices.
        """

    def init_other(self, x: Array) -> StateT:
        """Return the initial state of an array that isn't a matrix; by default, that of a matrix of one column.

        Args:
            x: the parameter as it is, or as one column, according to `others`.
        """
        return self.init_matrix(x)

    def prepare(self, count: Any) -> Any:
        """Return values that all leaves share, computed once per step and passed to other methods as `now`.

        Args:
            count: the number of previous steps, as a float.
        """
        del count

    def _prepare(self, count: Any, state: Any) -> Any:
        """Return what `prepare` returns, from the shared values of the state too."""
        del state
        return self.prepare(count)

    def share(self, now: Any) -> dict[str, Array]:
        """Return the values of the shared fields after a step, by name, without the count.

        Args:
            now: the result of `prepare`.
        """
        del now
        return {}

    def accumulate_matrix(self, now: Any, g: Array, s: StateT) -> StateT:
        """Return the state with the outer products of a gradient, before the factors are improved.

        Args:
            now: the result of `prepare`.
            g: the update of a batch of matrices.
            s: what of their state is declared with `per_matrix=True`.
        """
        del now, g
        return s

    def filter_leaf(self, now: Any, g: Array, s: StateT) -> tuple[Any, StateT]:
        """Return what `update_matrix` gets in place of the update, such as a momentum, and the state: entry by entry.

        Args:
            now: the result of `prepare`.
            g: the update, as an array of any shape.
            s: the state, without what is declared with `per_matrix=True`.
        """
        del now
        return g, s

    @abc.abstractmethod
    def update_matrix(self, now: Any, g: Any, s: StateT, p: Any) -> tuple[Array, StateT]:
        """Return the new update and the new state of a batch of matrices.

        Args:
            now: the result of `prepare`.
            g: the update, or the array or arrays that `filter_leaf` returned.
            s: the state.
            p: the parameter, or None if `update` was called without parameters.
        """

    def is_time(self, now: Any, count: Array) -> Array:
        """Return whether this step improves the factors.

        Args:
            now: the result of `prepare`.
            count: the number of previous steps.
        """
        del now
        return is_due(count, self.precondition_frequency)  # pyright: ignore[reportAttributeAccessIssue]

    def improve_factor(self, now: Any, x: Array, factor: Array, about: Factors) -> tuple[Array, ...]:
        """Return a factor computed from a square matrix, and anything that `carry_matrix` needs beside it.

        Args:
            now: the result of `prepare`.
            x: the square matrices of a batch, of several leaves and both sides.
            factor: the factors until now.
            about: more of them.
        """
        raise NotImplementedError(f"`{type(self).__name__}` has `factors`, but no `improve_factor`.")

    def carry_matrix(self, now: Any, old: StateT, new: StateT, beside: Mapping[str, Any]) -> StateT:
        """Return the state with the fields of `carried` as they are for new factors.

        Args:
            now: the result of `prepare`.
            old: the carried fields, and the factors until now.
            new: the carried fields, and the new factors.
            beside: what `improve_factor` returned beside each factor, by the name of its square matrix.
        """
        del now, old, beside
        return new

    def init_shared(self, params: Params) -> dict[str, Any]:
        """Return the initial values of the shared fields and those with states of parts, by name, without the count.

        Args:
            params: the parameters.
        """
        del params
        return {}

    def init(self, params: Params) -> StateT:
        """Return the initial state of the whole tree."""
        leaves, treedef = jtu.tree_flatten(params)
        found = {i: self._initial(layout, leaves[i]) for i, layout in self._layouts(params).items()}
        # If no leaf has a state, the names of the fields come from that of a matrix.
        one = jax.eval_shape(self.init_matrix, jax.ShapeDtypeStruct((1, 1), default_float()))
        states = [found.get(i) for i in range(len(leaves))]
        trees = {name: treedef.unflatten([getattr(s, name, None) for s in states]) for name in tree_fields(one)}
        return with_fields(one, **self.init_shared(params), **trees, count=no_steps())

    def update(
        self, updates: Updates, state: StateT, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StateT]:
        """Return the new updates and the new state."""
        del extra
        out, new, _ = self._step(updates, state, params)
        return out, new

    def _step(self, updates: Updates, state: Any, beside: Any) -> tuple[Updates, Any, Any]:
        """Return the new updates, the new state, and a tree like the updates whose values `update_matrix` gets as `p`.

        On explicit axes of a mesh, the results have the types of the arguments.
        """
        return tree_on_auto_axes(lambda rule, tree: _step(rule, *tree), self, (updates, state, beside))

    def _layouts(self, tree: PyTree) -> dict[int, Layout]:
        """Return how leaves are matrices, by their places, without those that pass."""
        call = f"{type(self).__name__}(weight_dimension_numbers=...)"
        # Fields that a rule may have.
        specified, size = getattr(self, "weight_dimension_numbers", as_roles(None)), getattr(self, "block_size", None)
        found = matrices_of(call, specified, tree, hidden=self.is_for_hidden_layers)
        other = {"pass": None, "array": Layout(None, is_array=True), "column": Layout(None, size)}[self.others]
        layouts = [other if matrix is None else Layout(matrix, size) for matrix in found]
        return {i: layout for i, layout in enumerate(layouts) if layout is not None}

    def _initial(self, layout: Layout, p: Array) -> StateT:
        """Return the initial state of a leaf, with what there is of entries in the shape of the leaf."""
        # Whole on explicit axes of a mesh, on which it may not be reshaped otherwise.
        method, x = "init_other" if layout.matrix is None else "init_matrix", layout.of(undivided(p, range(p.ndim)))
        with located(type(self).__name__, method):
            s = getattr(self, method)(x)
            fields = {name: y for name in tree_fields(s) if (y := getattr(s, name)) is not None}
            of_entries = _fields_of_entries(s)
            for name, y in fields.items():
                place = f"`{name}` has shape {y.shape} for matrices of shape {x.shape}."
                if name not in of_entries:
                    if y.shape[: layout.axes_before] != x.shape[: layout.axes_before]:
                        raise ValueError(f"{place} Begin with the axes that count them: `(*x.shape[:-2], ...)`.")
                elif y.shape == x.shape:
                    fields[name] = shard_like(typed_like(layout.back(y, p.shape), p), p)
                else:
                    raise ValueError(
                        f"{place} If it doesn't hold a value for each entry, declare it with "
                        f"`like_params(per_matrix=True)`."
                    )
        return with_fields(s, **fields)


def _fields_of_entries(state: Any) -> set[str]:
    """The fields with a value for each entry; those of the others belong to matrices."""
    fields = dataclasses.fields(state)
    return {f.name for f in fields if kind_of(f) == "params" and not f.metadata.get("per_matrix")}


def _step(rule: AbstractMatrixwise, updates: Updates, state: Any, beside: Any) -> tuple[Updates, Any, Any]:
    count, rule = state.count, resolve(rule, state.count)
    step = _Step.of(rule, rule._prepare(count.astype(default_float()), state), updates, state, beside)
    if type(rule).accumulate_matrix is not AbstractMatrixwise.accumulate_matrix:
        step.accumulate()
    if rule.improves_first:
        step.improve(count)
    us = step.update()
    if not rule.improves_first:
        step.improve(count)
    new = with_fields(state, **step.trees(), **rule.share(step.now), count=safe_increment(count))
    return jtu.tree_unflatten(jtu.tree_structure(updates), us), new, beside


@dataclasses.dataclass
class _Step:
    """One step of a rule: what there is of each leaf.

    Args:
        rule: the rule, with numbers in the place of schedules.
        now: what `prepare` returned.
        state: the state of the tree before the step.
        layouts: how leaves are matrices, by their places, without those that pass.
        updates: the update of each leaf.
        beside: the parameter of each leaf, or what is given in its place.
        fields: the fields of the state of each leaf, which change during the step.
        of_entries: the names of those fields that have a value for each entry.
        rebuild: for each field, the function that makes a tree of the values of all leaves.
    """

    rule: AbstractMatrixwise
    now: Any
    state: Any
    layouts: dict[int, Layout]
    updates: list[Array]
    beside: list[Any]
    fields: list[Fields]
    of_entries: set[str]
    rebuild: dict[str, Callable[[list[Any]], PyTree]]

    @property
    def shared(self) -> Shared:
        return self.rule, self.now

    @classmethod
    def of(cls, rule: AbstractMatrixwise, now: Any, updates: Updates, state: Any, beside: Any) -> "_Step":
        """Pair the trees by the paths of their leaves."""
        gs, call = jtu.tree_leaves(updates), f"{type(rule).__name__}.update"
        ps = [None] * len(gs) if beside is None else jtu.tree_leaves(beside)
        columns = {name: align(getattr(state, name), updates, call) for name in tree_fields(state)}
        fields = [{name: values[i] for name, (values, _) in columns.items()} for i in range(len(gs))]
        rebuild = {name: put for name, (_, put) in columns.items()}
        return cls(rule, now, state, rule._layouts(updates), gs, ps, fields, _fields_of_entries(state), rebuild)

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
        for i, (_, _, factors) in zip(rows, found, strict=True):
            self.fields[i] |= factors

    def update(self) -> list[Array]:
        """Return the updates of all leaves, in their dtypes, and change the states."""

        def filtered(shared: Shared, arrays: tuple[Array, Any, Fields]) -> tuple[Fields, tuple[Any, Any, Fields]]:
            g, p, own = arrays
            x, s = widened(g), self._state(own)
            with _calling("filter_leaf", shared, x.dtype) as (rule, now):
                x, new = rule.filter_leaf(now, x, s)
                changed = _changed(s, new, own)
            return changed, (x, p, own | changed)

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

        rows = [((self.updates[i], self.beside[i], self._of(i, True)), self._of(i, False)) for i in self.layouts]
        found = map_blocks(updated, self.shared, self.layouts.values(), rows, first=filtered)
        out = list(self.updates)
        for i, (kept, (u, own), factors) in zip(self.layouts, found, strict=True):
            out[i] = in_dtype(u, out[i].dtype)
            self.fields[i] |= kept | own | factors
        return out

    def improve(self, count: Array) -> None:
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

        found = cond(self.rule.is_time(self.now, count), lambda: self._improved(places, leaves), kept)
        for i, new in zip(leaves, found, strict=True):
            self.fields[i] |= new

    def _improved(self, places: list[tuple[int, str]], leaves: list[int]) -> list[Fields]:
        """The factors of some leaves, computed from the square matrices at these places, and what is carried over."""

        def improve(x: Array, factor: Array, sides: Array, filled: Array | None = None) -> tuple[Array, ...]:
            with _calling("improve_factor", self.shared, x.dtype) as (rule, now):
                return rule.improve_factor(now, x, factor, Factors(sides[..., 0], filled))

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
        lists = [
            [self.fields[i][name] for i, name in places],
            [self.fields[i][of_factor[name]] for i, name in places],
            [self._sides(i, name) for i, name in places],
            [self._filled(i, name) for i, name in places],
        ]
        is_filled = any(map(np.any, lists[3]))
        # Reshaped by `carry`, which is traced once for each shape.
        is_flat = bool(carried) and number_of_devices(lists[0][0]) == 1
        function = batched_by_memory(in_float32(improve))
        batches = in_batches(function, *(lists if is_filled else lists[:3]), is_flat=is_flat)
        old = {i: self._picked(i, of_factor.values()) for i in leaves}
        new: dict[int, Fields] = {i: {} for i in leaves}
        others: dict[int, Fields] = {i: {} for i in leaves}
        for (i, name), (factor, *more) in zip(places, batches, strict=True):
            new[i][of_factor[name]] = in_dtype(factor, old[i][of_factor[name]].dtype)
            others[i][name] = more
        if not carried:
            return [old[i] | new[i] for i in leaves]
        rows = [(self._picked(i, carried), (old[i], new[i], others[i])) for i in leaves]
        found = map_blocks(carry, self.shared, [self.layouts[i] for i in leaves], rows)
        return [old[i] | own | factors for i, (_, own, factors) in zip(leaves, found, strict=True)]

    def _sides(self, i: int, name: str) -> np.ndarray:
        """The number of sides with a factor, for each factor of a leaf."""
        sides = sum(self.fields[i][each] is not None for each in self.rule.factors)
        return np.full((*self.fields[i][name].shape[:-2], 1, 1), sides)

    def _filled(self, i: int, name: str) -> np.ndarray:
        """Which rows fill a block up, for each factor of a leaf."""
        x = self.fields[i][name]
        filled = self.layouts[i].filled(self.updates[i].shape, SIDES.index(name))
        return np.broadcast_to(filled[..., None, :], (*x.shape[:-2], 1, x.shape[-1]))

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
