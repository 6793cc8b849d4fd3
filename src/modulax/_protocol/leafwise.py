"""Transforms that are a rule on one array, and how several of them run as one function.

One class describes the state of one array and of the whole tree. `AbstractLeafwise.init` calls `init_leaf` for every
leaf and turns the tree of states into a state of trees; the counter and `shared` fields are stored once.

`run_rules` does one step of a run: one rule, or consecutive rules of a `Chain`. It has three parts. `_aligned` pairs
the trees of a rule's state with the updates by path, as one row of values per leaf, and calls `prepare` or `survey` for
the values that all leaves share. `map_leaves` maps one function over the leaves to which the same rules apply
(`where`), tracing leaves of one shape once: `_run_on_leaf`, which applies the rules in turn and casts their inputs and
results. `_Aligned.new_state` puts the trees together again.

In `one_function_per_key`, transforms that differ in their numbers only, such as the groups of a `Partition`, share
this function, so that each shape is traced once for all of them.
"""

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PyTree
from typing_extensions import TypeVar

from .._support.arithmetic import at_least_float32, default_float, no_steps, safe_increment
from .._support.failures import at_leaf, located
from .._support.module import AbstractState, first_values, kind_of
from .._support.types import Params, State, Updates
from ..tree._align import align
from ..tree._leafmap import cast_all, map_leaves, promotion_of
from ..tree._paths import leaf_paths
from .leaf_states import init_leaves
from .masks import select
from .schedule_values import resolve
from .transform import AbstractTransform, EmptyState

StateT = TypeVar("StateT", default=Any)
"""The class of a rule's state. A rule that doesn't name it is not checked in what it does with its state."""


class AbstractLeafwise(AbstractTransform, Generic[StateT]):
    """A transform that treats every array alike: implement its equations for one array, and nothing else.

    The state of one array and of the whole tree are the same class. `init_leaf` returns its fields for one array; in
    the state of the tree, each field is a tree of them. `init_leaf` and `update_leaf` leave out two kinds of fields:
    `count: Array | None = counter()`, which counts the steps, and fields declared with `shared(None)`, which have one
    value for all leaves, from `init_shared` and `share`:

        class HeavyBallState(AbstractState):
            velocity: PyTree

        class HeavyBall(AbstractLeafwise[HeavyBallState]):
            decay: Number = number(0.9)

            def init_leaf(self, p):
                return HeavyBallState(jnp.zeros_like(p))

            def update_leaf(self, now, g, s, p):
                v = self.decay * s.velocity + g
                return v, HeavyBallState(v)

    `AbstractLeafwise[HeavyBallState]` tells type checkers the class of `s`; plain `AbstractLeafwise` leaves it open.

    Arithmetic is done in at least float32, and results are cast back to the dtypes of the updates and of the state.
    Leaves of one shape are traced once, and in a `Chain` consecutive rules run as one function of an array. If the
    state has a step count, every hyperparameter can be a schedule.
    """

    def init_leaf(self, p: Array) -> StateT:
        """Return the initial state of one array; `EmptyState()` for a stateless rule.

        Args:
            p: the parameter.
        """
        del p
        return cast(StateT, EmptyState())

    def prepare(self, count: Any) -> Any:
        """Return values that all leaves share, computed once per step and passed to `update_leaf` as `now`.

        Args:
            count: the number of previous steps, as a float, or None if the state has no counter.
        """
        del count

    def _prepare(self, count: Any, state: Any) -> Any:
        """Return what `prepare` returns, from the shared values of the state too.

        A rule that implements this method does not see the leaves, so that it joins a run, and `Stacked` maps it.

        Args:
            count: the number of previous steps, as a float, or None if the state has no counter.
            state: the state of the whole tree, of which only the shared values may be read.
        """
        del state
        return self.prepare(count)

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
        """Return the initial values of the fields declared with `shared(None)`, by name.

        The counter and the fields declared with `shared(None, starts=...)` are left out.

        Make scalars with `jnp.array(x, default_float())`, which copies: a state must not share arrays with the rule.

        Args:
            params: the parameters.
        """
        del params
        return {}

    def share(self, now: Any) -> dict[str, Array] | None:
        """Return the values of the shared fields after a step, by name; None if `now` has them under these names.

        A counter is among them only if it is declared with `counter(steps=False)`.

        Args:
            now: the result of `prepare` or `survey`.
        """
        del now

    @abc.abstractmethod
    def update_leaf(self, now: Any, g: Array, s: StateT, p: Any) -> tuple[Any, StateT]:
        """Return the new update and the new state of one array.

        Args:
            now: the result of `prepare` or `survey`, or the value for this array from `where`.
            g: the update, in at least float32.
            s: the state of this array.
            p: the parameter, or None if `update` was called without parameters.
        """

    def _check_call(self, updates: Updates, params: Params | None, extra: Mapping[str, Any]) -> None:
        """Do nothing: `run_rules` checks each rule of a run, after its schedules have been replaced by their values."""

    def where(self, tree: PyTree) -> Sequence[Any] | None:
        """Return which leaves the rule applies to, in JAX's order; None for all. The others pass through unchanged.

        A value other than a boolean is what `update_leaf` receives as `now` for this leaf, in place of the shared one.

        Args:
            tree: the parameters, or a tree like them.
        """
        del tree

    def _reached(self, tree: PyTree) -> tuple[list[bool], dict[int, Any]]:
        """Return whether the rule applies to each leaf, in JAX's order, and the values of single leaves by index.

        Args:
            tree: the parameters, or a tree like them.
        """
        found = self.where(tree)
        if found is None:
            return [True] * len(jtu.tree_leaves(tree)), {}
        own = {i: x for i, x in enumerate(found) if not isinstance(x, (bool, np.bool_))}
        return [i in own or bool(x) for i, x in enumerate(found)], own

    def _fitting_state(self, p: Array, s: StateT) -> StateT:
        """Return a state with the shapes that that of an array must have, for a message about another one.

        Args:
            p: the parameter.
            s: the state whose shapes are compared with these.
        """
        del s
        return self.init_leaf(p)

    def _at_leaf(self, now: Any, own: Any) -> Any:
        """Return what `update_leaf` receives as `now` for a leaf with a value of its own from `where`: that value."""
        del now
        return own

    def _read(self, updates: Updates, extra: Mapping[str, Any]) -> PyTree | None:
        """Return a tree like the updates from the extra arguments, whose leaves are values of their own; None for none.

        A rule that reads one overrides `_at_leaf` too, and names the argument in `needs` and in `TREES` of
        `extra_arguments.py`.

        Args:
            updates: the updates of the leaves that the rule applies to.
            extra: the extra arguments of `update`.
        """
        del updates, extra

    def init(self, params: Params) -> StateT:
        """Return the initial state of the whole tree."""
        leaves, treedef = jtu.tree_flatten(params)
        indices = [i for i, chosen in enumerate(self._reached(params)[0]) if chosen]
        states = init_leaves(self, [leaves[i] for i in indices], lambda k: leaf_paths(params)[indices[k]])
        # If a mask chooses no leaf, the names of the fields come from the state of a scalar.
        example = states[0] if states else jax.eval_shape(self.init_leaf, jax.ShapeDtypeStruct((), default_float()))
        found = dict(zip(indices, states, strict=True))

        def tree(name: str) -> PyTree:
            # A leaf that is masked out is None, as an absent leaf is everywhere in Equinox.
            return treedef.unflatten([getattr(found[i], name) if i in found else None for i in range(len(leaves))])

        trees = {name: tree(name) for name in tree_fields(example)}
        counter = _counter(example)
        count = {counter.name: no_steps()} if counter else {}
        return type(example)(**count, **first_values(example, self), **self.init_shared(params), **trees)

    def at(self, state: StateT) -> Self:
        """Return this rule with its schedules replaced by their current values, if its state counts the steps.

        Args:
            state: the state of the whole tree.
        """
        counter = _counter(state)
        if counter is None or counter.metadata["counts"] != "steps":
            return self
        return resolve(self, getattr(state, counter.name))

    def update(
        self, updates: Updates, state: StateT, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StateT]:
        """Apply the rule to every leaf."""
        if not isinstance(state, AbstractState) and not jtu.tree_leaves(state):
            # The state of a stateless rule elsewhere: None, (), or optax's `EmptyState`.
            return run_rules([self], updates, [EmptyState()], params, extra)[0], state
        updates, (state,) = run_rules([self], updates, [state], params, extra)
        return updates, state


def _counter(state: State) -> dataclasses.Field | None:
    """The field of the state that is declared with `counter()`, if there is one."""
    return next((f for f in dataclasses.fields(state) if "counts" in f.metadata), None)


def _shared_fields(state: State) -> list[str]:
    """The names of the fields with one value for all leaves, without a count of the steps."""
    fields = [f for f in dataclasses.fields(state) if kind_of(f) == "shared"]
    return [f.name for f in fields if f.metadata.get("counts") != "steps"]


def tree_fields(state: State) -> list[str]:
    """Return the names of the fields of a state that are trees like the parameters."""
    return [f.name for f in dataclasses.fields(state) if kind_of(f) == "params"]


def reads_all_updates(rule: AbstractTransform) -> bool:
    """Whether the shared values of the rule depend on all leaves, so that it has to begin a run."""
    return isinstance(rule, AbstractLeafwise) and type(rule).survey is not AbstractLeafwise.survey


class _Aligned(NamedTuple):
    """One rule of a run, and its state by leaf.

    Args:
        rule: the rule, with its schedules at their current values.
        state: the state before the step.
        fields: names of the fields of the state that are trees.
        chosen: whether the rule applies to each leaf.
        rows: the values of these fields at each leaf to which the rule applies, by index; after the step, the new ones.
        rebuild: for each field, a function that puts a value for each of these leaves into its tree.
        now: the values that all leaves share.
        own: the values of single leaves in the place of `now`, by index.
    """

    rule: AbstractLeafwise
    state: State
    fields: Sequence[str]
    chosen: Sequence[bool]
    rows: dict[int, tuple[Any, ...]]
    rebuild: Sequence[Callable[[list[Any]], PyTree]]
    now: Any
    own: dict[int, Any]

    def leaf_state(self, row: Sequence[Any]) -> State:
        """The state of one array, from the values of its fields."""
        return type(self.state)(**dict(zip(self.fields, row, strict=True)))

    def row_of(self, state: State) -> tuple[Any, ...]:
        """The fields of the state of one array."""
        return tuple(getattr(state, field) for field in self.fields)

    def new_state(self) -> State:
        """Return the state of the whole tree after the step."""
        columns = list(zip(*self.rows.values(), strict=True)) if self.fields else []
        columns = columns or [()] * len(self.fields)
        trees = {f: put(list(c)) for f, put, c in zip(self.fields, self.rebuild, columns, strict=True)}
        counter = _counter(self.state)
        count = {counter.name: safe_increment(getattr(self.state, counter.name))} if counter else {}
        if (shared := self.rule.share(self.now)) is None:
            names = _shared_fields(self.state)
            if missing := [name for name in names if not hasattr(self.now, name)]:
                raise ValueError(
                    f"`{type(self.rule).__name__}` has no new value of the shared field `{missing[0]}`: return a "
                    f"NamedTuple with it from `prepare` or `survey`, or write `share(now)`."
                )
            shared = {name: getattr(self.now, name) for name in names}
        # `survey` computes in the default float dtype. A field that changed its dtype would retrace the next step.
        shared = {f: x.astype(getattr(self.state, f).dtype) for f, x in shared.items()}
        return type(self.state)(**{**count, **shared}, **trees)

    def check_shapes(self, g: Array, row: tuple[Any, ...], path: str) -> None:
        """Raise an error if the update has another shape than the parameter for which this state was made."""
        struct = jax.ShapeDtypeStruct(g.shape, g.dtype)
        like = jax.eval_shape(self.rule._fitting_state, struct, self.leaf_state(row))
        needed, found = (jtu.tree_map(jnp.shape, x) for x in (self.row_of(like), row))
        if found != needed:
            raise ValueError(
                f"`{type(self.rule).__name__}.update`: the updates must have the shapes of the parameters that `init` "
                f"was called with; but at `{path}` the update has shape {g.shape} and the state has shapes {found}."
            )


def _aligned(
    rule: AbstractLeafwise, state: State, updates: Updates, params: Params | None, extra: Mapping[str, Any]
) -> _Aligned:
    """Pair a rule's state with the updates, and compute the values that all leaves share."""
    rule = rule.at(state)
    AbstractTransform._check_call(rule, updates, params, extra)
    chosen, own = rule._reached(updates)
    indices = list(itertools.compress(range(len(chosen)), chosen))
    like = _selected(updates, chosen)
    if (tree := rule._read(like, extra)) is not None:
        own |= dict(zip(indices, jtu.tree_leaves(tree), strict=True))
    fields = tree_fields(state)
    aligned = [align(getattr(state, field), like, f"{type(rule).__name__}.update") for field in fields]
    rows = zip(*(values for values, _ in aligned), strict=True) if fields else [()] * len(indices)
    one = _Aligned(
        rule, state, fields, chosen, dict(zip(indices, rows, strict=True)), [put for _, put in aligned], None, own
    )
    return one._replace(now=_shared_values(one, like, _selected(params, chosen), extra))


def _selected(tree: PyTree | None, chosen: Sequence[bool]) -> PyTree | None:
    return tree if tree is None or all(chosen) else select(tree, chosen)


def _shared_values(one: _Aligned, updates: Updates, params: Params | None, extra: Mapping[str, Any]) -> Any:
    """The result of `survey`, or of `prepare` if the rule has no `survey`."""
    name, counter = type(one.rule).__name__, _counter(one.state)
    # A float, because strict promotion refuses the product of an integer and a float.
    count = getattr(one.state, counter.name).astype(default_float()) if counter else None
    if not reads_all_updates(one.rule):
        with located(name, "prepare"):
            return one.rule._prepare(count, one.state)
    treedef = jtu.tree_structure(updates)
    columns = [[row[k] for row in one.rows.values()] for k in range(len(one.fields))]
    trees = {field: treedef.unflatten(column) for field, column in zip(one.fields, columns, strict=True)}
    everything = (dataclasses.replace(one.state, **trees), updates, params)
    with promotion_of(jtu.tree_leaves(everything)), located(name, "survey"):
        return one.rule.survey(count, *cast_all(everything, default_float()), **extra)


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
    # Not a `tree_map` that returns tuples: `is_leaf` could not tell them from the tuples of a model.
    leaves, treedef = jtu.tree_flatten(updates)
    param_leaves = [None] * len(leaves) if params is None else jtu.tree_leaves(params)
    aligned = [_aligned(rule, state, updates, params, extra) for rule, state in zip(rules, states, strict=True)]
    for kind, indices in _groups(aligned).items():
        active = [one for one, is_active in zip(aligned, kind, strict=True) if is_active]
        columns = [(leaves[i], param_leaves[i], *_inputs(active, i)) for i in indices]
        for i, (u, rows) in zip(indices, _run_on_leaves(active, columns, updates, indices), strict=True):
            leaves[i] = u
            for one, row in zip(active, rows, strict=True):
                one.rows[i] = row
    return treedef.unflatten(leaves), [one.new_state() for one in aligned]


def _inputs(aligned: Sequence[_Aligned], i: int) -> tuple[list[Any], list[Any]]:
    """The values of the states at a leaf, and what each rule has for this leaf in place of `now`."""
    return [one.rows[i] for one in aligned], [one.own.get(i) for one in aligned]


def _groups(aligned: Sequence[_Aligned]) -> dict[tuple[bool, ...], list[int]]:
    """The indices of the leaves to which the same rules apply, by whether each rule does."""
    groups: dict[tuple[bool, ...], list[int]] = {}
    for i, kind in enumerate(zip(*(one.chosen for one in aligned), strict=True)):
        if any(kind):
            groups.setdefault(kind, []).append(i)
    return groups


def _run_on_leaves(
    aligned: Sequence[_Aligned], columns: Sequence[tuple[Any, ...]], updates: Updates, indices: Sequence[int]
) -> list[tuple[Array, list[tuple[Any, ...]]]]:
    """Apply the rules to the leaves at these indices.

    A column is the update, the parameter, the states' values, and what each rule has for this leaf in place of `now`.
    """
    # The numbers are arguments and the treedef is the key, so that rules that differ in numbers share a function.
    shared, shared_def = jtu.tree_flatten([(one.rule, one.now) for one in aligned])

    # `own` is an argument too: leaves of one shape are traced once, whatever their multipliers are.
    def on_leaf(shared, g, p, rows, own):
        pairs = [
            (rule, now if x is None else rule._at_leaf(now, x))
            for (rule, now), x in zip(shared_def.unflatten(shared), own, strict=True)
        ]
        return _run_on_leaf(aligned, pairs, g, p, rows)

    def at(i: int) -> contextlib.AbstractContextManager[None]:
        return at_leaf(lambda: leaf_paths(updates)[indices[i]], columns[i][0])

    key = (shared_def, *((type(one.state), *one.fields) for one in aligned))
    try:
        return map_leaves(on_leaf, shared, columns, at=at, key=key)
    except (TypeError, ValueError):  # jax.numpy raises these for shapes that don't match
        # Leaves of one shape are traced once, without their paths, so the leaf at fault has to be found afterwards.
        paths = leaf_paths(updates)
        for i, (g, _, rows, _) in zip(indices, columns, strict=True):
            for one, row in zip(aligned, rows, strict=True):
                one.check_shapes(g, row, paths[i])
        raise


def _run_on_leaf(
    aligned: Sequence[_Aligned],
    rules: Sequence[tuple[AbstractLeafwise, Any]],
    g: Array,
    p: Array | None,
    rows: Sequence[tuple[Any, ...]],
) -> tuple[Array, list[tuple[Any, ...]]]:
    """Apply the rules, each with its shared values, to one array; between rules the update keeps the wide dtype."""
    dtype = at_least_float32(g.dtype, *([] if p is None else [p.dtype]))
    u, p = g.astype(dtype), None if p is None else p.astype(dtype)
    new_rows = []
    with promotion_of([u]):
        for one, pair, row in zip(aligned, rules, rows, strict=True):
            # Never below float32: `bfloat16(0.999)` is 1, and the bias correction would be zero.
            rule, now = cast_all(pair, dtype)
            name = type(rule).__name__
            with jax.named_scope(name), located(name, "update_leaf"):
                u, state = rule.update_leaf(now, u, one.leaf_state(cast_all(row, dtype)), p)
                new_row = one.row_of(state)
                before, after = (jtu.tree_map(jnp.shape, x) for x in ((g, row), (u, new_row)))
                if before != after:
                    raise ValueError(
                        f"`{name}.update_leaf` must keep every shape; but an update and a state of shapes {before} "
                        f"became {after}."
                    )
            new_rows.append(jtu.tree_map(lambda new, old: new.astype(old.dtype), new_row, row))
    return u.astype(g.dtype), new_rows
