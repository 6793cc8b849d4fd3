"""Stacks: arrays of several leaves as one array, in a state and in the program of a step.

In a state, `unstack` puts an array for each leaf in the place of every stack, under the names of the leaves, and
`stack_like` is its inverse. Whatever looks for arrays by name or by parameter works on that form.

In a program, `Stacks` remembers which stack an array is a row of. `map_leaves` asks it, and computes a function of the
rows of a stack as one function of the stack. All other code receives the rows, which are ordinary arrays.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from .._support.stacked import AbstractStackedState


def take_apart(x: Array) -> list[Array]:
    """Return the rows of a stack."""
    return [jax.lax.index_in_dim(x, i, keepdims=False) for i in range(x.shape[0])]


# JAX traces and lowers these once for each shape, and XLA inlines them.
_joined = jax.jit(lambda rows: jnp.stack(rows))
_taken_apart = jax.jit(take_apart)


class Row(NamedTuple):
    """The place of an array: its group of leaves, and the index of its leaf in it."""

    group: int
    member: int


class Stacks:
    """Which arrays belong to which group of leaves, and which of them are the rows of a stack.

    Arrays are known by identity. They are kept here, so that no other array gets the `id` of one.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Array, Row]] = {}
        self._stacks: dict[tuple[int, ...], tuple[Array, Sequence[Array]]] = {}

    def place(self, arrays: Sequence[Any], group: int, indices: Sequence[int]) -> None:
        """Remember the group of arrays that are in no stack."""
        self._rows.update((id(x), (x, Row(group, i))) for i, x in zip(indices, arrays, strict=True))

    def rows(self, stack: Array, group: int, indices: Sequence[int]) -> list[Array]:
        """Return the rows of a stack, as arrays."""
        rows = _taken_apart(stack)
        self.place(rows, group, indices)
        self.remember(stack, rows)
        return rows

    def remember(self, stack: Array, rows: Sequence[Array]) -> None:
        """Remember the stack that has these rows; they are kept too, so that no other array gets the `id` of one."""
        self._stacks[tuple(map(id, rows))] = stack, rows

    def known(self, rows: Sequence[Array]) -> Array | None:
        """Return the stack that has these rows, if there is one."""
        return self._stacks.get(tuple(map(id, rows)), (None,))[0]

    def stack(self, rows: Sequence[Array]) -> Array:
        """Return the stack that has these rows, or make it."""
        found = self.known(rows)
        return _joined(list(rows)) if found is None else found

    def row_of(self, arrays: Sequence[Any]) -> Row | None:
        """Return the place of the first array that has one."""
        return next((self._rows[id(x)][1] for x in arrays if id(x) in self._rows), None)


class _Active(threading.local):
    stacks: Stacks | None = None


_active = _Active()


def active_stacks() -> Stacks | None:
    """The stacks of the innermost `stacking`."""
    return _active.stacks


@contextlib.contextmanager
def stacking(stacks: Stacks) -> Iterator[None]:
    """Compute functions of the rows of a stack as one function of the stack."""
    before, _active.stacks = _active.stacks, stacks
    try:
        yield
    finally:
        _active.stacks = before


def _is_stacked(x: Any) -> bool:
    return isinstance(x, AbstractStackedState)


def stacked_states(tree: PyTree) -> list[AbstractStackedState]:
    """The outermost states with stacks in a tree."""
    return [x for x in jtu.tree_leaves(tree, is_leaf=_is_stacked) if _is_stacked(x)]


def unstack(tree: PyTree) -> PyTree:
    """Replace every state of `Stacked` in a tree by one that has an array for each parameter.

        mu = tree.unstack(state).inner_state.inner[0].mu

    The names are those of a state without stacks. `Stacked` continues from such a state without stacks. `tree.get`,
    `tree.map_params` and `modulax.checkpoint` call this function themselves.

    Args:
        tree: a state of `Stacked`, or a tree that holds some.
    """
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=_is_stacked)
    if not any(map(_is_stacked, leaves)):
        return tree  # the same object, and of a class that may not be made again from its leaves
    return treedef.unflatten([_all_unstacked(x.unstacked()) if _is_stacked(x) else x for x in leaves])


def _all_unstacked(state: Any) -> Any:
    children, treedef = jtu.tree_flatten(state, is_leaf=lambda x: x is not state)
    return treedef.unflatten(list(map(unstack, children)))


def stack_like(tree: PyTree, like: PyTree) -> PyTree:
    """Stack the arrays of a tree as they are in another one; the inverse of `unstack`.

    Args:
        tree: a tree with the structure of `unstack(like)`.
        like: a tree with states of `Stacked`.
    """
    forms, treedef = jtu.tree_flatten(like, is_leaf=_is_stacked)
    if not any(map(_is_stacked, forms)):
        return tree
    found = treedef.flatten_up_to(tree)
    return treedef.unflatten(
        [_one_stacked_like(x, f) if _is_stacked(f) else x for x, f in zip(found, forms, strict=True)]
    )


def _one_stacked_like(state: Any, form: Any) -> Any:
    single = form.unstacked()
    children, treedef = jtu.tree_flatten(state, is_leaf=lambda x: x is not state)
    forms = jtu.tree_leaves(single, is_leaf=lambda x: x is not single)
    return form.stacked(treedef.unflatten([stack_like(x, f) for x, f in zip(children, forms, strict=True)]))


def row(x: Any, i: int, axis: int) -> Any:
    """Return an element along an axis of an array, or of its shape."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x[(slice(None),) * axis + (i,)] if isinstance(x, np.ndarray) else jnp.take(x, i, axis, mode="clip")
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        spec = list(sharding.spec) + [None] * (len(x.shape) - len(sharding.spec))
        spec = PartitionSpec(*spec[:axis], *spec[axis + 1 :])
        sharding = NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return jax.ShapeDtypeStruct(x.shape[:axis] + x.shape[axis + 1 :], x.dtype, sharding=sharding)


def join_like(rows: Sequence[Any], old: Any, axis: int) -> Any:
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
