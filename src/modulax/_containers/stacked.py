"""`Stacked`: the state of many small parameters in stacks, which are updated by one operation each.

`init` decides which parameters are in a group, `_Layout`. In the state, the arrays of a group in one tree like the
parameters are a stack, at the place of the first; the others are None. `update` gives the inner transform the rows of
the stacks, so that it never sees a stack. `map_leaves`, through which every rule on one array goes, finds by `Stacks`
that its arguments are rows, and computes the stack.
"""

import collections
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer, required_part
from .._protocol.masks import AbstractLabels, as_labels
from .._protocol.transform import AbstractTransform
from .._support.module import nested
from .._support.stacked import AbstractStackedState
from .._support.types import Params, State, Updates
from ..tree._paths import Names, named_leaves
from ..tree._stacks import Stacks, join_like, row, stacking
from ..tree._state import owners, owning_paths


class _Stack(NamedTuple):
    """A stack in a state.

    Args:
        group: the index of the group of its parameters.
        members: the index of the parameter of each row in the group.
        places: where the rows are among the leaves of the state, counting None.
        ndim: number of axes of a row.
    """

    group: int
    members: tuple[int, ...]
    places: tuple[int, ...]
    ndim: int


class _Layout:
    """Which parameters are grouped, and which arrays of the state are stacks; static, and compared by value."""

    def __init__(self, groups: tuple[tuple[Names, ...], ...] = (), stacks: tuple[_Stack, ...] = ()):
        self.groups, self.stacks = groups, stacks
        self._hash = hash((groups, stacks))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is _Layout and (self.groups, self.stacks) == (other.groups, other.stacks)

    def __reduce__(self) -> Any:
        return _Layout, (self.groups, self.stacks)

    def __repr__(self) -> str:
        return f"{len(self.stacks)} stacks of {sum(map(len, self.groups))} parameters"


_ALONE = _Layout()


class StackedState(AbstractStackedState):
    """State of `Stacked`: the inner state, in which some arrays are stacks, each at the place of its first row.

    `modulax.tree.unstack(state)` has an array for each parameter. `layout` is static and says what was stacked.
    """

    layout: _Layout = eqx.field(static=True)
    inner_state: State = nested()

    def unstacked(self) -> "StackedState":
        """Return this state with an array for each parameter."""
        leaves, treedef = _with_none(self.inner_state)
        for stack in self.layout.stacks:
            x = leaves[stack.places[0]]
            axis = x.ndim - stack.ndim - 1  # after the axes of a batch of states
            for i, place in enumerate(stack.places):
                leaves[place] = row(x, i, axis)
        return StackedState(_ALONE, treedef.unflatten(leaves))

    def stacked(self, single: "StackedState") -> "StackedState":
        """Return a state with an array for each parameter in the form of this one.

        Args:
            single: the state.
        """
        old = _with_none(self.inner_state)[0]
        leaves, treedef = _with_none(single.inner_state)
        for stack in self.layout.stacks:
            rows = [leaves[place] for place in stack.places]
            axis = rows[0].ndim - stack.ndim
            _put(leaves, stack, join_like(rows, old[stack.places[0]], axis))
        return StackedState(self.layout, treedef.unflatten(leaves))

    def together(self) -> list[list[Names]]:
        """Return the paths of the parameters that are in one stack, for each group of them."""
        return [list(group) for group in self.layout.groups]


def _with_none(tree: PyTree) -> tuple[list[Any], Any]:
    return jtu.tree_flatten(tree, is_leaf=lambda x: x is None)


def _put(leaves: list[Any], stack: _Stack, x: Any) -> None:
    """Put a stack at the place of its first row."""
    for place in stack.places:
        leaves[place] = None
    leaves[stack.places[0]] = x


class Stacked(AbstractContainer):
    """Updates many small parameters together, with their state in stacks of arrays of one shape.

        optimizer = Stacked(AdamW(1e-3))

    Use it for models with hundreds of small arrays, where the launch of an operation takes longer than the operation.
    The moments of up to `chunk` parameters of one shape and dtype are one array, and stay so from step to step. Each
    step stacks the gradients, and returns updates for the single parameters. The benchmarks have the times of a step
    and of its compilation for 512 arrays of 32 entries, and for a transformer's arrays.

    The inner transform does to every parameter what it does without `Stacked`: the rule on one array is mapped over the
    stack by `jax.vmap`, so that a norm is that of one array, and a matrix stays a matrix. Masks, parameter groups and
    paths see single parameters. Results are equal up to rounding, and bit for bit where nothing is stacked.

    What is computed by rules on one array becomes faster: most optimizers, `LowBit`, `MasterWeights`, averages. Other
    transforms, such as `ScaleByLBFGS`, and containers inside that run a step in a branch of `jax.lax.cond`, such as
    `MultiSteps`, are computed on the rows, which costs time. Put those containers around `Stacked`.

    Names in checkpoints are those of single parameters. So a run continues with or without `Stacked`, by
    `modulax.checkpoint.restore(..., strict=False)`. `modulax.tree.get(state, "mu")` returns a tree with an array for
    each parameter, and `modulax.tree.unstack(state)` such a state.

    A compiled `init` doesn't know the sharding of parameters, except on explicit axes of a mesh. If parameters of one
    shape are sharded in different ways, `labels` keeps them apart; `state_sharding` raises an error otherwise.

    Args:
        inner: the inner transform.
        chunk: the largest number of parameters in a stack; 1 switches stacking off. Stacks of one shape have one size,
            and a few parameters may be left over, which are not stacked.
        max_size: parameters with more entries are not stacked: copying them into a stack costs more than it saves.
        labels: which parameters may share a stack, those of one label: a tree of labels with the structure of the
            parameters or a prefix of it, a function of the parameters that returns such a tree, or patterns such as
            `by_path`. Parameters with the label False are not stacked. By default, all may.
    """

    inner: AbstractTransform = required_part()
    chunk: int = eqx.field(static=True, default=16)
    max_size: int = eqx.field(static=True, default=8192)
    labels: AbstractLabels | None = eqx.field(static=True, default=None, converter=as_labels)

    def check(self) -> None:
        """Check that the sizes are positive integers."""
        for name in ("chunk", "max_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`Stacked({name}=...)` must be a positive integer such as 16, got {value!r}.")

    def init(self, params: Params) -> StackedState:
        """Return the initial state of the inner transform, with the arrays of small parameters in stacks."""
        state = self.inner.init(params)
        layout = self._layout(params, state)
        leaves, treedef = _with_none(state)
        for stack in layout.stacks:
            _put(leaves, stack, Stacks().stack([leaves[place] for place in stack.places]))
        return StackedState(layout, treedef.unflatten(leaves))

    def update(
        self, updates: Updates, state: StackedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, StackedState]:
        """Run one step of the inner transform."""
        layout, stacks = state.layout, Stacks()
        leaves, treedef = _with_none(state.inner_state)
        for stack in layout.stacks:
            rows = stacks.rows(leaves[stack.places[0]], stack.group, stack.members)
            for place, x in zip(stack.places, rows, strict=True):
                leaves[place] = x
        if layout.groups:
            found = dict(named_leaves(updates))
            for i, group in enumerate(layout.groups):
                indices = [k for k, names in enumerate(group) if names in found]
                stacks.place([found[group[k]] for k in indices], i, indices)
        with stacking(stacks):
            updates, new = self.inner.update(updates, treedef.unflatten(leaves), params, **extra)
        leaves = treedef.flatten_up_to(new)
        for stack in layout.stacks:
            _put(leaves, stack, stacks.stack([leaves[place] for place in stack.places]))
        return updates, StackedState(layout, treedef.unflatten(leaves))

    # Overridden because the inner transform reads its own state.
    def eval_params(self, state: StackedState, params: Params) -> Params:
        """Return the evaluation parameters of the inner transform.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        return self.inner.eval_params(state.unstacked().inner_state, params)

    def _layout(self, params: Params, state: State) -> _Layout:
        groups = self._groups(params)
        paths = [names for names, _ in named_leaves(params)]
        of = {i: (g, k) for g, group in enumerate(groups) for k, i in enumerate(group)}
        found: dict[tuple[int, Hashable], list[tuple[int, int]]] = {}
        ndims: dict[tuple[int, Hashable], int] = {}
        places = [place for place, x in enumerate(_with_none(state)[0]) if x is not None]
        within = [names for _, names in owning_paths(state)]
        rows = zip(places, owners(state, params), named_leaves(state), within, strict=True)
        for place, owner, (names, x), inside in rows:
            if owner is not None and owner in of:
                group, member = of[owner]
                # The tree in the state, and the place below the parameter.
                where = names[: len(names) - len(inside)], inside[len(paths[owner]) :]
                key = group, (where, jax.typeof(x))
                found.setdefault(key, []).append((member, place))
                ndims[key] = x.ndim
        several = {key: sorted(rows) for key, rows in found.items() if len(rows) > 1}
        used = sorted({group for group, _ in several})
        stacks = [
            _Stack(used.index(key[0]), tuple(m for m, _ in rows), tuple(p for _, p in rows), ndims[key])
            for key, rows in several.items()
        ]
        return _Layout(tuple(tuple(paths[i] for i in groups[g]) for g in used), tuple(stacks))

    def _groups(self, params: Params) -> list[Sequence[int]]:
        """The indices of the parameters of each group."""
        leaves = jtu.tree_leaves(params)
        labels = [None] * len(leaves) if self.labels is None else self.labels.labels(params)
        paths = collections.Counter(names for names, _ in named_leaves(params))
        kinds: dict[Hashable, list[int]] = {}
        for i, (p, label, (names, _)) in enumerate(zip(leaves, labels, named_leaves(params), strict=True)):
            # Members of a group are found by their paths.
            if 0 < p.size <= self.max_size and label is not False and paths[names] == 1:
                kinds.setdefault((jax.typeof(p), label), []).append(i)
        return [stack for found in kinds.values() for stack in self._split(found)]

    def _split(self, members: Sequence[int]) -> list[Sequence[int]]:
        """Parameters of one kind in stacks of one size, since another size is another set of kernels to compile.

        Those left over stay single.
        """
        if self.chunk == 1:
            return []
        size = max(2, len(members) // -(-len(members) // self.chunk))
        return [members[k : k + size] for k in range(0, len(members) - size + 1, size)]
