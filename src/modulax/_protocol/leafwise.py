"""Transforms that are a rule on one array, and how several of them run as one function.

One class describes the state of one array and of the whole tree. `AbstractLeafwise.init` calls `init_leaf` for every
leaf and turns the tree of states into a state of trees; the counter and `shared` fields are stored once.

`run_rules` does one step of a run: one rule, or consecutive rules of a `Chain`. For each rule, `_Part` pairs the trees
of the state with the updates by path, takes them apart into one row of values per leaf, and calls `prepare` or `survey`
for the values that all leaves share. The leaves are grouped by which of the rules apply to them (`where`). For each
group, `map_leaves` maps one function over the leaves, tracing leaves of one shape once: `_run_on_leaf`, which applies
the rules in turn and casts their inputs and results. `_Part.finish` then puts each state together again.

In `one_function_per_rule`, transforms that differ in their numbers only, such as the groups of a `Partition`, share
this function, so that each shape is traced once for all of them.
"""

import abc
import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import Array, PyTree

from .._support.arithmetic import at_least_float32, common_dtype, default_float, no_steps, real_dtype, safe_increment
from .._support.module import AbstractState, kind_of
from .._support.types import Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import LeafFunction, in_groups, map_leaves
from ..tree._paths import leaf_paths
from .masks import select
from .schedule_values import resolve
from .transform import AbstractTransform, EmptyState

_GROUP = 32  # arrays of one shape whose initial states are computed together, in a program
_EAGER_GROUP = 2  # and outside one: few, since the last one of a shape may be computed as often


class AbstractLeafwise(AbstractTransform):
    """A transform that does the same to every array: implement its equations on one array, and nothing else.

    The state of one array and of the whole tree are the same class. `init_leaf` returns its fields for one array; in
    the state of the tree, each field is a tree of them. `init_leaf` and `update_leaf` leave out two kinds of fields:
    `count: Count | None = counter()`, which counts the steps, and fields declared with `shared(None)`, which have one
    value for all leaves, from `init_shared` and `share`:

        class HeavyBallState(AbstractState):
            velocity: PyTree

        class HeavyBall(AbstractLeafwise):
            decay: Number = number(0.9)

            def init_leaf(self, p):
                return HeavyBallState(jnp.zeros_like(p))

            def update_leaf(self, now, g, s, p):
                v = self.decay * s.velocity + g
                return v, HeavyBallState(v)

    Arithmetic is done in at least float32, and results are cast back to the dtypes of the updates and of the state.
    Leaves of one shape are traced once, and in a `Chain` consecutive rules run as one function of an array. If the
    state has a step count, every hyperparameter can be a schedule.
    """

    def init_leaf(self, p: Array) -> State:
        """Return the initial state of one array; `EmptyState()` for a stateless rule.

        Args:
            p: the parameter.
        """
        del p
        return EmptyState()

    def prepare(self, count: Any) -> Any:
        """Return values that all leaves share, computed once per step and passed to `update_leaf` as `now`.

        Args:
            count: the number of previous steps, as a float, or None if the state has no counter.
        """
        del count

    def survey(self, count: Any, state: Any, updates: Updates, params: Params | None, **extra: Any) -> Any:
        """Return shared values that depend on all leaves, such as a norm, or on extra arguments; replaces `prepare`.

        All arrays are in JAX's default float dtype, like the hyperparameters, so that leaves of different dtypes can be
        combined. A rule that implements this method begins a new run in a chain.

        Args:
            count: the number of previous steps, as a float, or None if the state has no counter.
            state: the state of the whole tree; its trees have the structure of the updates.
            updates: the updates.
            params: the parameters, or None if `update` was called without them.
            extra: the extra arguments of `update`.
        """
        del state, updates, params, extra
        return self.prepare(count)

    def init_shared(self, params: Params) -> dict[str, Array]:
        """Return the initial values of the fields declared with `shared(None)`, by name; the counter is left out.

        Make scalars with `jnp.array(x, default_float())`, which copies: a state must not share arrays with the rule.

        Args:
            params: the parameters.
        """
        del params
        return {}

    def share(self, now: Any) -> dict[str, Array]:
        """Return the values of the shared fields after a step, by name.

        A counter is among them only if it is declared with `counter(steps=False)`.

        Args:
            now: the result of `prepare` or `survey`.
        """
        del now
        return {}

    def spread(self, now: Any, tree: PyTree) -> Sequence[Any] | None:
        """Return a value for each leaf, in JAX's order, which `update_leaf` receives as `now`; None if all share `now`.

        Args:
            now: the result of `prepare` or `survey`.
            tree: the updates.
        """
        del now, tree

    @abc.abstractmethod
    def update_leaf(self, now: Any, g: Array, s: Any, p: Any) -> tuple[Any, State]:
        """Return the new update and the new state of one array.

        Args:
            now: the result of `prepare` or `survey`, or the value for this array from `spread`.
            g: the update, in at least float32.
            s: the state of this array.
            p: the parameter, or None if `update` was called without parameters.
        """

    def check_call(self, updates: Updates, params: Params | None, extra: Mapping[str, Any]) -> None:
        """Do nothing: `run_rules` checks each rule of a run, after its schedules have been replaced by their values."""

    def where(self, tree: PyTree) -> Sequence[bool] | None:
        """Return which leaves the rule applies to, in JAX's order; None for all. The others pass through unchanged.

        Args:
            tree: the parameters, or a tree like them.
        """
        del tree

    def init(self, params: Params) -> State:
        """Return the initial state of the whole tree."""
        leaves, treedef = jtu.tree_flatten(params)
        chosen = self.where(params) or [True] * len(leaves)
        states: list[Any] = [None] * len(leaves)
        indices = [i for i, is_chosen in enumerate(chosen) if is_chosen]
        for i, s in zip(indices, _init_leaves(self, [leaves[i] for i in indices]), strict=True):
            states[i] = s
        example = next((s for s in states if s is not None), None)
        if example is None:
            example = jax.eval_shape(self.init_leaf, jax.ShapeDtypeStruct((), default_float()))
        trees = {
            name: treedef.unflatten([None if s is None else getattr(s, name) for s in states])
            for name in _tree_fields(example)
        }
        counter = _counter(example)
        count = {counter.name: no_steps()} if counter else {}
        return type(example)(**count, **self.init_shared(params), **trees)

    def at(self, state: State) -> Self:
        """Return this rule with its schedules replaced by their current values, if its state counts the steps.

        Args:
            state: the state of the whole tree.
        """
        counter = _counter(state)
        if counter is None or counter.metadata["counts"] != "steps":
            return self
        return resolve(self, getattr(state, counter.name))

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        """Apply the rule to every leaf."""
        if not isinstance(state, AbstractState) and not jtu.tree_leaves(state):
            # The state of a stateless rule elsewhere: None, (), or optax's `EmptyState`.
            return run_rules([self], updates, [EmptyState()], params, extra)[0], state
        updates, (state,) = run_rules([self], updates, [state], params, extra)
        return updates, state


@jax.jit
def _init_group(rule: AbstractLeafwise, leaves: Sequence[Array]) -> list[State]:
    return [rule.init_leaf(p) for p in leaves]


def _init_leaves(rule: AbstractLeafwise, leaves: Sequence[Array]) -> list[State]:
    """The states of many arrays, computed in groups of one shape by a function that is compiled once for each shape."""
    is_program = any(isinstance(p, Tracer) for p in leaves)
    size = _GROUP if is_program else _EAGER_GROUP
    if len(leaves) >= size:
        example = jax.eval_shape(rule.init_leaf, leaves[0])
        if not jtu.tree_leaves(example):  # a program without results takes its time too
            return [example] * len(leaves)
    kinds = [(p.shape, p.dtype) for p in leaves]
    counts = collections.Counter(kinds)

    def together(group: list[int]) -> list[State]:
        return _init_group(rule, [leaves[i] for i in group])

    def each(i: int) -> State:
        if is_program:
            return rule.init_leaf(leaves[i])
        return together([i] * min(size, counts[kinds[i]]))[0]  # the program of the others again

    return in_groups(kinds, size, each, together)


def _counter(state: State) -> dataclasses.Field | None:
    """The field of the state that is declared with `counter()`, if there is one."""
    return next((f for f in dataclasses.fields(state) if "counts" in f.metadata), None)


def _tree_fields(state: State) -> list[str]:
    return [f.name for f in dataclasses.fields(state) if kind_of(f) == "params"]


def reads_all_updates(rule: AbstractTransform) -> bool:
    """Whether the shared values of the rule depend on all leaves, so that it has to begin a run."""
    return isinstance(rule, AbstractLeafwise) and type(rule).survey is not AbstractLeafwise.survey


class _Part:
    """One rule of a run, with its state taken apart: for each leaf it applies to, the values of the state's fields."""

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
        self._counter = _counter(state)
        count = getattr(state, self._counter.name).astype(default_float()) if self._counter else None
        self.rule = rule.at(state)
        AbstractTransform.check_call(self.rule, updates, params, extra)
        self.chosen = list(self.rule.where(updates) or [True] * size)
        self._state, self._fields = state, _tree_fields(state)
        self._indices = [i for i, chosen in enumerate(self.chosen) if chosen]
        like = updates if all(self.chosen) else select(updates, self.chosen)
        aligned = [align(getattr(state, field), like, f"{name}.update") for field in self._fields]
        self._rebuild = [rebuild for _, rebuild in aligned]
        rows = zip(*(v for v, _ in aligned), strict=True) if aligned else [()] * len(self._indices)
        self.values = dict(zip(self._indices, rows, strict=True))
        if reads_all_updates(rule):
            trees = {f: jtu.tree_structure(like).unflatten(v) for f, (v, _) in zip(self._fields, aligned, strict=True)}
            params = params if params is None or like is updates else select(params, self.chosen)
            everything = (dataclasses.replace(state, **trees), like, params)
            with _promotion(jtu.tree_leaves(everything)):
                self.now = self.rule.survey(count, *_cast(everything, default_float()), **extra)
        else:
            self.now = self.rule.prepare(count)
        own = self.rule.spread(self.now, like)
        self.own = None if own is None else dict(zip(self._indices, own, strict=True))

    def check_shapes(self, g: Array, value: tuple[Any, ...], path: str) -> None:
        """Raise an error if the update has another shape than the parameter for which this state was made."""
        like = jax.eval_shape(self.rule.init_leaf, jax.ShapeDtypeStruct(g.shape, g.dtype))
        needed, found = (jtu.tree_map(jnp.shape, x) for x in (self.as_values(like), value))
        if found != needed:
            raise ValueError(
                f"`{type(self.rule).__name__}.update`: the updates must have the shapes of the parameters that `init` "
                f"was called with; but at `{path}` the update has shape {g.shape} and the state has shapes {found}."
            )

    @property
    def kind(self) -> Hashable:
        """What `update_leaf` of this rule depends on, apart from the rule and its arguments."""
        return type(self._state), tuple(self._fields)

    def as_state(self, values: Sequence[Any]) -> State:
        """The state of one array, from the values of its fields."""
        return type(self._state)(**dict(zip(self._fields, values, strict=True)))

    def as_values(self, state: State) -> tuple[Any, ...]:
        """The fields of the state of one array."""
        return tuple(getattr(state, field) for field in self._fields)

    def finish(self) -> State:
        """Return the state of the whole tree after the step."""
        columns = zip(*(self.values[i] for i in self._indices), strict=True) if self._fields else ()
        columns = list(columns) or [()] * len(self._fields)
        trees = {f: put(list(c)) for f, put, c in zip(self._fields, self._rebuild, columns, strict=True)}
        name = self._counter and self._counter.name
        count = {name: safe_increment(getattr(self._state, name))} if name else {}
        shared = {f: x.astype(getattr(self._state, f).dtype) for f, x in self.rule.share(self.now).items()}
        return type(self._state)(**{**count, **shared}, **trees)


def run_rules(
    rules: Sequence[AbstractLeafwise],
    updates: Updates,
    states: Sequence[State],
    params: Params | None,
    extra: Mapping[str, Any],
) -> tuple[Updates, list[State]]:
    """Apply several rules, one after the other, as one function of an array; only the first may have a `survey`.

    Args:
        rules: the rules.
        updates: the updates.
        states: the state of each rule.
        params: the parameters, or None.
        extra: the extra arguments of `update`.

    Returns:
        the new updates, and the new state of each rule.
    """
    leaves, treedef = jtu.tree_flatten(updates)
    param_leaves = [None] * len(leaves) if params is None else jtu.tree_leaves(params)
    size = len(leaves)
    parts = [_Part(rule, state, updates, params, extra, size) for rule, state in zip(rules, states, strict=True)]
    groups: dict[tuple[bool, ...], list[int]] = {}
    for i, kind in enumerate(zip(*(part.chosen for part in parts), strict=True)):
        groups.setdefault(kind, []).append(i)
    for kind, indices in groups.items():
        active = [part for part, is_active in zip(parts, kind, strict=True) if is_active]
        if active:
            own = [[None if part.own is None else part.own[i] for part in active] for i in indices]
            columns = [
                (leaves[i], param_leaves[i], [part.values[i] for part in active], x)
                for i, x in zip(indices, own, strict=True)
            ]
            for i, (u, values) in zip(indices, _run_on_leaves(active, columns, updates, indices), strict=True):
                leaves[i] = u
                for part, value in zip(active, values, strict=True):
                    part.values[i] = value
    return treedef.unflatten(leaves), [part.finish() for part in parts]


def _run_on_leaves(
    parts: Sequence[_Part], columns: Sequence[tuple[Any, ...]], updates: Updates, indices: Sequence[int]
) -> list[tuple[Array, list[tuple[Any, ...]]]]:
    """Apply the rules to the leaves at these indices.

    A column is the update, the parameter, the states' values, and the values of `spread`.
    """
    shared, shared_def = jtu.tree_flatten([(part.rule, None if part.own else part.now) for part in parts])

    def on_leaf(shared, g, p, values, own):
        pairs = [
            (rule, now if x is None else x) for (rule, now), x in zip(shared_def.unflatten(shared), own, strict=True)
        ]
        return _run_on_leaf(parts, pairs, g, p, values)

    key = (shared_def, *(part.kind for part in parts))
    try:
        return map_leaves(_function_for(key, on_leaf), shared, columns)
    except (TypeError, ValueError):  # jax.numpy raises these for shapes that don't match
        # Leaves of one shape are traced once, without their paths, so the leaf at fault has to be found afterwards.
        paths = leaf_paths(updates)
        for i, (g, _, values, _) in zip(indices, columns, strict=True):
            for part, value in zip(parts, values, strict=True):
                part.check_shapes(g, value, paths[i])
        raise


class _Shared(threading.local):
    functions: dict[Hashable, LeafFunction] | None = None


_shared = _Shared()


@contextlib.contextmanager
def one_function_per_rule() -> Iterator[None]:
    """Trace a rule once for all transforms that are traced in this context and differ in their numbers only."""
    before = _shared.functions
    _shared.functions = {} if before is None else before
    try:
        yield
    finally:
        _shared.functions = before


def _function_for(key: Hashable, function: Callable[..., Any]) -> LeafFunction:
    """The function itself, or in `one_function_per_rule` that of an equal rule before."""
    new = LeafFunction(function)
    return new if _shared.functions is None else _shared.functions.setdefault(key, new)


def _run_on_leaf(
    parts: Sequence[_Part],
    rules: Sequence[tuple[AbstractLeafwise, Any]],
    g: Array,
    p: Array | None,
    values: Sequence[tuple[Any, ...]],
) -> tuple[Array, list[tuple[Any, ...]]]:
    """Apply the rules, each with its shared values, to one array; between rules the update keeps the wide dtype."""
    dtype = at_least_float32(g.dtype, *([] if p is None else [p.dtype]))
    u, p = g.astype(dtype), None if p is None else p.astype(dtype)
    new_values = []
    with _promotion([u]):
        for part, pair, value in zip(parts, rules, values, strict=True):
            rule, now = _cast(pair, dtype)
            with jax.named_scope(type(rule).__name__):
                u, state = rule.update_leaf(now, u, part.as_state(_cast(value, dtype)), p)
            new_value = part.as_values(state)
            before, after = (jtu.tree_map(jnp.shape, x) for x in ((g, value), (u, new_value)))
            if before != after:
                raise ValueError(
                    f"`{type(rule).__name__}.update_leaf` must keep every shape; but an update and a state of shapes "
                    f"{before} became {after}."
                )
            new_values.append(jtu.tree_map(lambda new, old: new.astype(old.dtype), new_value, value))
    return u.astype(g.dtype), new_values


def _promotion(arrays: Sequence[Array]) -> contextlib.AbstractContextManager[None]:
    """Allow dtype promotion if an array is complex: strict promotion forbids a real number times a complex array."""
    is_complex = any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in arrays)
    return jax.numpy_dtype_promotion("standard") if is_complex else contextlib.nullcontext()


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    """Cast real arrays to the real dtype of the precision of `dtype`, and complex arrays to the complex one."""

    def cast(x: Any) -> Array:
        if not hasattr(x, "dtype"):  # under `jax.disable_jit`, a number that a rule returns in `survey` is one here too
            x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return x.astype(common_dtype(dtype, jnp.complex64))
        return x.astype(real_dtype(dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jtu.tree_map(cast, tree)
