"""Transforms that are a rule on one matrix: what `AbstractLeafwise` is for one array."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal

import jax
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.leafwise import StateT, tree_fields
from .._protocol.schedule_values import AbstractCounted, resolve
from .._roles.find import as_roles
from .._support.arithmetic import default_float, is_due, no_steps, safe_increment
from .._support.failures import located
from .._support.module import first_values, with_fields
from .._support.placement import shard_like, typed_like, undivided
from .._support.types import Params, Updates
from ..linalg._newton_schulz import Parts
from .blocks import Layout, Row
from .matrices import Matrix, matrices_of, specified_matrices
from .matrix_step import Factors, MatrixStep, fields_of_entries
from .spread import on_auto_axes


class AbstractMatrixwise(AbstractCounted, Generic[StateT]):
    r"""A transform that treats every matrix alike: implement its equations for one matrix, and nothing else.

    In a matrix, rows are inputs and columns are outputs, whatever the framework and the layer: the base class finds the
    matrices by the roles of the parameters, or as `weight_dimension_numbers` says. They are on the last two axes of an
    array in at least float32, after any axes of a batch. The state of one matrix and of the whole tree are the same
    class, as in `AbstractLeafwise`. A field of it has the shape of the matrix, or one row with a value for each output,
    or is declared with `like_params(per_matrix=True)`:

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

    improved: ClassVar[tuple[str, ...]] = ()
    """The fields of matrices that `improve_matrix` computes every few steps, before the update."""

    _improves_updates: ClassVar[bool] = False
    """Whether `_improve` changes what `update_matrix` gets."""

    is_split: ClassVar[bool] = False
    """Whether matrices that are joined in one array, such as query, key and value, are given to the rule one by one."""

    is_joined: ClassVar[bool] = False
    """Whether `update_matrix` gets all matrices of one shape in one batch, which makes decompositions faster."""

    improves_first: ClassVar[bool] = False
    """Whether the factors of a step are improved before its update is computed."""

    others: ClassVar[Literal["pass", "array", "column"]] = "pass"
    """What becomes of arrays that aren't matrices: they pass, or are given to the rule as they are, or as a column."""

    is_for_hidden_layers: ClassVar[bool] = False
    """Whether to leave out embeddings and heads, where their roles are known."""

    _matrices_from: ClassVar[str] = "weight_dimension_numbers"
    """The field that tells which parameters are matrices."""

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

    def is_transposed(self, rows: int, columns: int) -> bool:
        """Return whether the rule is given the transposes of matrices of some size.

        Args:
            rows: the number of inputs.
            columns: the number of outputs.
        """
        del rows, columns
        return False

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

    def map_whole(self, x: Array) -> Array:
        """Return a function of whole matrices, whose value for a transpose is the transpose: an orthogonal factor.

        `update_matrix` gets it in place of the update, or of the first array that `filter_leaf` returned. Matrices of
        one shape, and of its transpose, are joined in batches.

        Args:
            x: a batch of matrices.
        """
        raise NotImplementedError(f"`{type(self).__name__}` has no `map_whole`.")

    def _map_parts(self, x: Array, parts: Parts) -> Array:
        """Return `map_whole` of matrices, of which several devices may share one.

        Args:
            x: a batch of matrices.
            parts: the part of each that a device has.
        """
        del parts
        return self.map_whole(x)

    def _sent(self, x: Array) -> Array:
        """Return what `map_whole` gets in the dtype in which devices exchange it."""
        return x

    def is_time(self, now: Any, count: Array) -> Array:
        """Return whether this step improves the factors.

        Args:
            now: the result of `prepare`.
            count: the number of previous steps.
        """
        del now
        return is_due(count, self.precondition_frequency)  # pyright: ignore[reportAttributeAccessIssue]

    def improve_matrix(self, now: Any, g: Any, s: StateT) -> StateT:
        """Return the fields of `improved`, computed from the updates of a batch of matrices.

        Args:
            now: the result of `prepare`.
            g: the update, or the array or arrays that `filter_leaf` returned.
            s: these fields until now.
        """
        raise NotImplementedError(f"`{type(self).__name__}` has `improved`, but no `improve_matrix`.")

    def _draw(
        self, now: Any, state: StateT, gs: Sequence[Any], states: Sequence[StateT]
    ) -> tuple[Any, Sequence[Array | None], Sequence[StateT]]:
        """Return what `_improve` gets as `now`, as noise of each leaf, and as fields until now: what is random in them.

        Shared fields of `improved` are read from the first. The noise has the shape of the update.

        Args:
            now: the result of `prepare`.
            state: the state of the whole tree.
            gs: the update of each leaf, or the array or arrays that `filter_leaf` returned.
            states: the fields of `improved` of each leaf.
        """
        del state
        return now, [None] * len(gs), states

    def _improve(self, now: Any, g: Any, s: StateT, noise: Array | None) -> tuple[Any, StateT]:
        """Return what `update_matrix` gets, and what `improve_matrix` returns, from noise too."""
        del noise
        return g, self.improve_matrix(now, g, s)

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
        return with_fields(one, **first_values(one, self), **self.init_shared(params), **trees, count=no_steps())

    def update(
        self, updates: Updates, state: StateT, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StateT]:
        """Return the new updates and the new state."""
        del extra
        return self._step(updates, state, self._beside(updates, params))

    def _beside(self, updates: Updates, params: Params | None) -> PyTree:
        """Return what `update_matrix` gets as `p`, in a tree like the updates; by default, the parameters."""
        del updates
        return params

    def _step(self, updates: Updates, state: StateT, beside: PyTree) -> tuple[Updates, StateT]:
        """Return the new updates and the new state. On explicit axes of a mesh, they have the types of the old ones."""
        trees = (updates, state, beside)
        out, new, _ = on_auto_axes(_step, trees)(self, trees)
        return out, new

    def _layouts(self, tree: PyTree) -> dict[int, Layout]:
        """Return how leaves are matrices, by their places, without those that pass."""
        call = f"{type(self).__name__}({self._matrices_from}=...)"
        # Fields that a rule may have.
        specified, size = getattr(self, self._matrices_from, as_roles(None)), getattr(self, "block_size", None)
        labels = specified_matrices(specified, getattr(self, "follow", "paper"))
        per_head = getattr(self, "per_head", False)
        found = matrices_of(call, labels, tree, per_head=per_head, hidden=self.is_for_hidden_layers)
        layouts = {}
        for i, (x, matrix) in enumerate(zip(jtu.tree_leaves(tree), found, strict=True)):
            if matrix is not None:
                layouts[i] = self._layout(matrix, size)
            elif self.others != "pass":
                is_array = self.others == "array"
                layouts[i] = Layout(Matrix.column(x.shape), None if is_array else size, is_array)
        return layouts

    def _layout(self, matrix: Matrix, size: int | None) -> Layout:
        if self.is_split and matrix.blocks:
            return Layout(matrix, size, parts=tuple(self._layout(part, size) for part in matrix.parts))
        return Layout(matrix.transposed if self.is_transposed(*matrix.size) else matrix, size)

    def _initial(self, layout: Layout, p: Array) -> StateT:
        """Return the initial state of a leaf, with what there is of entries in the shape of the leaf."""
        # Whole on explicit axes of a mesh, on which it may not be reshaped otherwise.
        xs = [x for x, _ in layout.split((undivided(p, range(p.ndim)), {}))]
        found = [self._initial_row(part, x) for part, x in zip(layout.parts or (layout,), xs, strict=True)]
        arrays, others = layout.join([row for _, row in found])
        return with_fields(found[0][0], **{name: _placed(y, p) for name, y in arrays.items()}, **others)

    def _initial_row(self, layout: Layout, p: Array) -> tuple[StateT, Row]:
        """Return the initial state of matrices, its fields of entries in the shape of the array, and the others."""
        method, x = "init_matrix" if layout.matrix.columns else "init_other", layout.of(p)
        row: Row = ({}, {})
        with located(type(self).__name__, method):
            s = getattr(self, method)(x)
            of_entries = fields_of_entries(s)
            for name in tree_fields(s):
                if (y := getattr(s, name)) is None:
                    continue
                place = f"`{name}` has shape {y.shape} for matrices of shape {x.shape}."
                if name not in of_entries and not (layout.is_array and y.shape == x.shape):
                    if y.shape[: len(layout.batch)] != layout.batch:
                        raise ValueError(f"{place} Begin with the axes that count them: `(*x.shape[:-2], ...)`.")
                    row[1][name] = y
                elif y.shape in (x.shape, (*x.shape[:-2], 1, *x.shape[-1:])):
                    row[0][name] = layout.back(y)
                else:
                    raise ValueError(
                        f"{place} If it doesn't hold a value for each entry, declare it with "
                        f"`like_params(per_matrix=True)`."
                    )
        return s, row


def _placed(y: Array, p: Array) -> Array:
    """A value for each entry, where the parameter is; one for each column, as it is."""
    return shard_like(typed_like(y, p), p) if y.shape == p.shape else y


def _step(rule: AbstractMatrixwise, trees: tuple[Updates, Any, Any]) -> tuple[Updates, Any, Any]:
    updates, state, beside = trees

    def has(name: str) -> bool:
        return getattr(type(rule), name) is not getattr(AbstractMatrixwise, name)

    if rule.is_split and (rule.improved or rule.factors):
        raise ValueError(
            f"`{type(rule).__name__}` has `is_split`, with which nothing is computed every few steps: leave out "
            f"`is_split`, `improved` and `factors`, or all but the first, and compute it in `update_matrix`."
        )
    rule = resolve(rule, state.count)
    now = rule._prepare(state.count.astype(default_float()), state)
    step = MatrixStep(rule, now, updates, state, beside, is_filtered=not has("filter_leaf"))
    if has("accumulate_matrix"):
        step.accumulate()
    if rule.improved:
        step.improve_matrices()
    if rule.improves_first:
        step.improve()
    needs_whole = has("map_whole") or has("_map_parts")
    if needs_whole:
        step.map_whole(are_shared=has("_map_parts"))
    us = step.update(is_local=needs_whole)
    if not rule.improves_first:
        step.improve()
    new = with_fields(state, **step.trees(), **step.of_all, **rule.share(step.now), count=safe_increment(state.count))
    return jtu.tree_unflatten(jtu.tree_structure(updates), us), new, beside
