"""Transforms that are a rule on one array, and how several of them run as one."""

import abc
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._support.arithmetic import at_least_float32, common_dtype, default_float, real_dtype, safe_increment
from .._support.module import holds
from .._support.types import Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import map_leaves
from ..tree._paths import leaf_paths
from .in_force import resolve
from .masks import select
from .transform import AbstractTransform, EmptyState, check_call


class AbstractLeafwise(AbstractTransform):
    """A transform that does the same to every array: write the equations on one array, and nothing else.

    The state of one array and of the whole tree are one class. Its fields are what `init_leaf` returns for an array;
    in the whole state each of them is a tree. Fields with the default None belong to all leaves together, and the rule
    leaves them alone: `count: Count | None = None` counts the steps, others are written by `init_shared` and `share`:

        class HeavyBallState(AbstractState):
            velocity: PyTree

        class HeavyBall(AbstractLeafwise):
            decay: Number = number(0.9)

            def init_leaf(self, p):
                return HeavyBallState(jnp.zeros_like(p))

            def update_leaf(self, now, g, s, p):
                v = self.decay * s.velocity + g
                return v, HeavyBallState(v)

    Arithmetic is done in at least float32; what is returned or stored is cast to the dtype it had. Leaves of one
    shape are traced once, and in a `Chain` consecutive rules run as one function of an array. Where the state counts,
    a schedule may stand in any field.
    """

    _is_checked_elsewhere: ClassVar[bool] = True  # each part of a run is checked by itself, with its schedules resolved

    def init_leaf(self, p: Array) -> State:
        """The state of one array; `EmptyState()` where there is none."""
        del p
        return EmptyState()

    def prepare(self, count: Any) -> Any:
        """Numbers that all leaves share, computed once a step and given to `update_leaf` as `now`.

        `count` is the number of steps done before, as a float, or None for a state that does not count.
        """
        del count

    def survey(self, count: Any, state: Any, updates: Updates, params: Params | None, **extra: Any) -> Any:
        """`prepare` for numbers that depend on all leaves, such as a norm, or on extra arguments.

        The trees of the state have the structure of the updates. Everything is in JAX's default float dtype, as the
        rule's own numbers are, so that leaves of different dtypes meet. A rule that has it begins a new run in a chain.
        """
        del state, updates, params, extra
        return self.prepare(count)

    def init_shared(self, params: Params) -> dict[str, Array]:
        """The fields of the state that belong to all leaves together, without the count, before the first step.

        Make numbers with `jnp.array(x, default_float())`, which copies: a state shares no array with the rule.
        """
        del params
        return {}

    def share(self, now: Any) -> dict[str, Array]:
        """What these fields are after a step, from what `prepare` or `survey` returned.

        If the count is among them, the rule counts something else than its steps, from which it begins anew; its `at`
        then returns the rule itself, because no schedule goes by such a count.
        """
        del now
        return {}

    @abc.abstractmethod
    def update_leaf(self, now: Any, g: Array, s: Any, p: Any) -> tuple[Any, State]:
        """The new update and the new state of one array.

        Args:
            now: what `prepare` returned.
            g: the update, in at least float32.
            s: the state of this array.
            p: the parameter, or None where `update` was called without.
        """

    def where(self, tree: PyTree) -> Sequence[bool] | None:
        """Which leaves the rule is for, in JAX's order; None for all. The others pass through unchanged."""
        del tree

    def init(self, params: Params) -> State:
        """The state of the whole tree."""
        leaves, treedef = jtu.tree_flatten(params)
        chosen = self.where(params) or [True] * len(leaves)
        states = [self.init_leaf(p) if c else None for p, c in zip(leaves, chosen, strict=True)]
        example = next((s for s in states if s is not None), None)
        if example is None:
            example = jax.eval_shape(self.init_leaf, jax.ShapeDtypeStruct((), default_float()))
        trees = {
            name: treedef.unflatten([None if s is None else getattr(s, name) for s in states])
            for name in _tree_fields(example)
        }
        count = {"count": jnp.zeros((), jnp.int32)} if _counts(example) else {}
        return type(example)(**count, **self.init_shared(params), **trees)

    def at(self, state: State) -> Self:
        """This rule with its schedules, if it counts the steps for them, replaced by their numbers for the next one."""
        return resolve(self, state.count) if _counts(state) else self

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """One step of the rule on every leaf."""
        updates, (state,) = run_rules([self], updates, [state], params, extra)
        return updates, state


def _counts(state: State) -> bool:
    return any(f.name == "count" for f in dataclasses.fields(state))


def _tree_fields(state: State) -> list[str]:
    return [f.name for f in dataclasses.fields(state) if holds(f) == "params"]


def reads_all_updates(rule: AbstractLeafwise) -> bool:
    """Whether the rule's shared numbers depend on all leaves, so that it cannot follow another in one run."""
    return type(rule).survey is not AbstractLeafwise.survey


class _Part:
    """One rule of a run with its state taken apart: for each leaf that it is for, the values of the state's fields."""

    def __init__(
        self,
        rule: AbstractLeafwise,
        state: State,
        updates: Updates,
        params: Params | None,
        extra: Mapping[str, Any],
        size: int,
    ):
        name = type(rule).__name__
        count = state.count.astype(default_float()) if _counts(state) else None
        self.rule = rule.at(state)
        check_call(self.rule, updates, params, extra)
        self.chosen = list(self.rule.where(updates) or [True] * size)
        self._state, self._fields = state, _tree_fields(state)
        self._indices = [i for i, chosen in enumerate(self.chosen) if chosen]
        like = updates if all(self.chosen) else select(updates, self.chosen)
        aligned = [align(getattr(state, field), like, f"{name}.update") for field in self._fields]
        self._rebuild = [rebuild for _, rebuild in aligned]
        self.values = dict(zip(self._indices, zip(*(v for v, _ in aligned), strict=True), strict=False))
        if reads_all_updates(rule):
            trees = {f: jtu.tree_structure(like).unflatten(v) for f, (v, _) in zip(self._fields, aligned, strict=True)}
            params = params if params is None or like is updates else select(params, self.chosen)
            everything = (dataclasses.replace(state, **trees), like, params)
            with _promotion(jtu.tree_leaves(everything)):
                self.now = self.rule.survey(count, *_cast(everything, default_float()), **extra)
        else:
            self.now = self.rule.prepare(count)

    def of_leaf(self, i: int) -> tuple[Any, ...]:
        """The values of the state's fields at leaf `i`."""
        return self.values.get(i, ())

    def as_state(self, values: Sequence[Any]) -> State:
        """The state of one array."""
        return type(self._state)(**dict(zip(self._fields, values, strict=True)))

    def as_values(self, state: State) -> tuple[Any, ...]:
        """The fields of the state of one array."""
        return tuple(getattr(state, field) for field in self._fields)

    def finish(self) -> State:
        """The state of the whole tree, put together again."""
        columns = zip(*(self.values[i] for i in self._indices), strict=True) if self._fields else ()
        columns = list(columns) or [()] * len(self._fields)
        trees = {f: put(list(c)) for f, put, c in zip(self._fields, self._rebuild, columns, strict=True)}
        count = {"count": safe_increment(self._state.count)} if _counts(self._state) else {}
        shared = {f: x.astype(getattr(self._state, f).dtype) for f, x in self.rule.share(self.now).items()}
        return type(self._state)(**{**count, **shared}, **trees)


def run_rules(
    rules: Sequence[AbstractLeafwise],
    updates: Updates,
    states: Sequence[State],
    params: Params | None,
    extra: Mapping[str, Any],
) -> tuple[Updates, list[State]]:
    """Several rules, one after the other, as one function of an array; only the first may survey all leaves."""
    leaves, treedef = jtu.tree_flatten(updates)
    param_leaves = [None] * len(leaves) if params is None else jtu.tree_leaves(params)
    size = len(leaves)
    parts = [_Part(rule, state, updates, params, extra, size) for rule, state in zip(rules, states, strict=True)]
    numbers, numbers_def = jtu.tree_flatten([(part.rule, part.now) for part in parts])
    kinds = list(zip(*(part.chosen for part in parts), strict=True))
    for kind in dict.fromkeys(kinds):
        active = [part for part, is_active in zip(parts, kind, strict=True) if is_active]
        indices = [i for i, k in enumerate(kinds) if k == kind]
        if not active:
            continue

        def on_leaf(numbers, g, p, values, active=active):
            at_work = [pair for part, pair in zip(parts, numbers_def.unflatten(numbers), strict=True) if part in active]
            return _run_on_leaf(active, at_work, g, p, values)

        columns = [(leaves[i], param_leaves[i], [part.of_leaf(i) for part in active]) for i in indices]
        try:
            results = map_leaves(on_leaf, numbers, columns)
        except _LeafError as error:
            paths = leaf_paths(updates)
            at = next(paths[i] for i, column in zip(indices, columns, strict=True) if error.is_about(column))
            raise ValueError(f"{error}, at `{at}`. {error.__cause__ or ''}".strip()) from error.__cause__
        for i, (u, values) in zip(indices, results, strict=True):
            leaves[i] = u
            for part, value in zip(active, values, strict=True):
                part.values[i] = value
    return treedef.unflatten(leaves), [part.finish() for part in parts]


def _run_on_leaf(
    parts: Sequence[_Part],
    at_work: Sequence[tuple[AbstractLeafwise, Any]],
    g: Array,
    p: Array | None,
    values: Sequence[tuple[Any, ...]],
) -> tuple[Array, list[tuple[Any, ...]]]:
    """The rules on one array. Between them the update keeps the dtype of the arithmetic."""
    dtype = at_least_float32(g.dtype, *([] if p is None else [p.dtype]))
    u, p = g.astype(dtype), None if p is None else p.astype(dtype)
    new_values = []
    with _promotion([u]):
        for part, pair, value in zip(parts, at_work, values, strict=True):
            rule, now = _cast(pair, dtype)
            with jax.named_scope(type(rule).__name__):
                try:
                    u, state = rule.update_leaf(now, u, part.as_state(_cast(value, dtype)), p)
                except (TypeError, ValueError) as error:  # what jnp raises for shapes that do not fit
                    if all(x.shape == g.shape for x in jtu.tree_leaves(value)):
                        raise
                    raise _LeafError(rule, g.shape, jtu.tree_map(jnp.shape, value)) from error
            new_value = part.as_values(state)
            if jtu.tree_map(jnp.shape, (u, new_value)) != jtu.tree_map(jnp.shape, (g, value)):
                raise _LeafError(rule, g.shape, jtu.tree_map(jnp.shape, value))
            new_values.append(jtu.tree_map(lambda new, old: new.astype(old.dtype), new_value, value))
    return u.astype(g.dtype), new_values


def _promotion(arrays: Sequence[Array]) -> contextlib.AbstractContextManager[None]:
    """A real number times a complex array is meant to be complex, which strict promotion would refuse."""
    is_complex = any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in arrays)
    return jax.numpy_dtype_promotion("standard") if is_complex else contextlib.nullcontext()


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    """The tree with its floats in `dtype`, real ones in the real dtype beside it."""

    def cast(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x.astype(common_dtype(dtype, jnp.complex64))
        return x.astype(real_dtype(dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jtu.tree_map(cast, tree)


class _LeafError(Exception):
    """A rule failed on a leaf, of which inside of a trace only the shapes are known."""

    def __init__(self, rule: AbstractLeafwise, shape: tuple[int, ...], state_shapes: Any):
        super().__init__(
            f"`{type(rule).__name__}.update`: a rule keeps every shape, and the updates have the shapes of the "
            f"parameters that `init` was given; but an update of shape {shape} met a state of shapes {state_shapes}"
        )
        self._shape, self._state_shapes = shape, state_shapes

    def is_about(self, column: tuple[Any, ...]) -> bool:
        """Whether it was raised by a leaf like this one."""
        g, _, values = column
        return g.shape == self._shape and self._state_shapes in jtu.tree_map(jnp.shape, list(values))
