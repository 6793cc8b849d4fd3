"""The members of a sweep in training: structures, which have a program, and lanes, which run it.

A `Structure` is the training traced for the members of one structure. A `Lane` is a fixed number of these members with
their carries: what one call of the program runs. If there are fewer members than the lane is wide, the last one is
repeated, so that there is one program for all lanes.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from .._plugin.arrays import is_typed_key
from .._plugin.messages import listing
from .._plugin.states import states_with_names
from .._plugin.trees import Names, dotted, named_leaves
from ._data import Data
from ._memory import exhausted, peak
from ._program import content_of, fetched, first_difference, tree_difference
from ._sweep import Group, Members, stacked
from ._training import (
    Axes,
    Keys,
    LaneProgram,
    Placement,
    Size,
    Trainable,
    as_metrics,
    in_segments,
    takes_number,
    trace,
    unjitted,
)

HYPERPARAMETER, CARRY = Axes(members=True, seeds=False), Axes(members=True, seeds=True)
SHARED = Axes(members=False, seeds=False)


class Structure:
    """A training for optimizers of one structure: how members begin, and one segment of it.

    A plain `train` has an empty carry and one segment, which takes the random keys.

    Args:
        training: `train` or a `Trainable`.
        group: the members, of which the first one is traced.
        key: the shape of a random key.
        where: the devices.
        own_keys: whether the keys are `[member, seed]`, in place of `[seed]` for all members.
        data: what `advance` gets of the data of a segment.
        again: whether the training is traced again, to see that this gives the same program.
    """

    def __init__(
        self,
        training: Any,
        group: Group,
        key: jax.ShapeDtypeStruct,
        where: Placement,
        *,
        own_keys: bool = False,
        data: Data | None = None,
        again: bool = True,
    ):
        self.training, self.group, self.key, self.where = training, group, key, where
        self.key_axes = Axes(members=own_keys, seeds=True)
        optimizer = group.members[0]
        self.numbers = [HYPERPARAMETER] * len(jtu.tree_leaves(optimizer))
        self.start: LaneProgram | None = None
        self.names: list[Names] = []  # of the leaves of the carry
        self.params: str | None = None
        self._data, self._has_number = data, False  # that of the segment, among the arguments
        if (segments := in_segments(training)) is not None:
            self._trace_segments(segments, optimizer, again)
            return
        whole = unjitted(training)

        def train(optimizer: PyTree, key: PRNGKeyArray) -> PyTree:
            return as_metrics("train", whole(optimizer, key))

        traced = trace("train", train, optimizer, self.key, again=again)
        self.metrics = traced.result
        self.segment = LaneProgram(traced, [*self.numbers, self.key_axes], where)
        self.programs = [self.segment]

    def _trace_segments(self, training: Trainable, optimizer: PyTree, again: bool) -> None:
        begin, go_on = unjitted(training.start), unjitted(training.advance)
        static: list[PyTree] = []

        def start(optimizer: PyTree, key: PRNGKeyArray) -> PyTree:
            arrays, rest = eqx.partition(begin(optimizer, key), eqx.is_array)
            static.extend([jax.tree.map(_key_type, arrays), rest])
            return jax.tree.map(key_as_data, arrays)

        def advance(optimizer: PyTree, carry: PyTree, *shared: Any) -> tuple[PyTree, PyTree]:
            arrays = jax.tree.map(_as_key, carry, static[0])
            out = go_on(optimizer, eqx.combine(arrays, static[1]), *shared)
            if not isinstance(out, tuple) or len(out) != 2:
                what = f"a tuple of {len(out)}" if isinstance(out, tuple) else type(out).__name__
                raise TypeError(f"`advance` must return a pair, `(carry, metrics)`, and it returned {what}.")
            following, rest = eqx.partition(out[0], eqx.is_array)
            _check_carry((arrays, static[1]), (following, rest))
            return jax.tree.map(key_as_data, following), as_metrics("advance", out[1])

        beginning = trace("start", start, optimizer, self.key, again=again)
        self.start = LaneProgram(beginning, [*self.numbers, self.key_axes], self.where)
        self.names, self.params = _names_of(beginning.result), _params_of(beginning.result)
        self._has_number = self._data is None and takes_number(go_on)
        shared = [self._data.shapes] if self._data else self.shared(0)
        traced = trace("advance", advance, optimizer, beginning.result, *shared, again=again)
        self.metrics = traced.result[1]
        first, last = len(self.numbers), len(self.numbers) + len(self.names)
        axes = [*self.numbers, *([CARRY] * len(self.names)), *([SHARED] * len(jtu.tree_leaves(shared)))]
        self.segment = LaneProgram(traced, axes, self.where, donated=range(first, last))
        self.programs = [self.start, self.segment]

    def shared(self, segment: int) -> list[Any]:
        """The leaves that all members and seeds get in a segment: its data, or its number."""
        if self._data is not None:
            return self._data.take(segment)
        return [np.asarray(segment, jnp.result_type(int))] * self._has_number

    def digest(self) -> str:
        """A short text that differs if the training is another program: its code, its data, or a function inside."""
        return "-".join(content_of(program.traced.closed).digest() for program in self.programs)

    def needed(self, size: Size) -> int:
        """The bytes per device that a lane of this size needs at its peak; the program is compiled for that."""
        most = max(peak(program.compiled(size)) for program in self.programs)
        return most + (self._data.size if self._data else 0)  # the next segment, which is read meanwhile

    def carry_shapes(self, size: Size) -> list[jax.ShapeDtypeStruct]:
        """The shapes and placement of the carries, to restore them."""
        return self.segment.shapes(size)[len(self.numbers) :][: len(self.names)]


def _names_of(carry: PyTree) -> list[Names]:
    """The names of the leaves of a carry; their numbers if two have the same name."""
    names = [names or ("",) for names, _ in named_leaves(carry)]
    return names if len(set(names)) == len(names) else [(str(i),) for i in range(len(names))]


def _params_of(carry: PyTree) -> str | None:
    """The first part of a carry with floating-point arrays that is not the state of an optimizer, or None."""
    states = [names for names, _ in states_with_names(carry)]
    floats = [names for names, x in named_leaves(carry) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return next((x[0] for x in floats if x and not any(x[: len(names)] == names for names in states)), None)


def key_as_data(x: Any) -> Any:
    """An array, as integers if it is a random key: the host and the disk know no keys."""
    return jax.random.key_data(x) if is_typed_key(x) else x


def _key_type(x: Any) -> Any:
    return jax.random.key_impl(x) if is_typed_key(x) else ""


def _as_key(data: Any, kind: Any) -> Any:
    return jax.random.wrap_key_data(data, impl=kind) if kind else data


def _check_carry(before: tuple[PyTree, PyTree], after: tuple[PyTree, PyTree]) -> None:
    """Raise an error if a segment changes the structure, a shape, a dtype or a non-array of the carry."""
    hint = "The carry that `advance` returns must have the structure, shapes and dtypes of the one that it takes"
    if difference := first_difference(before[0], after[0]):
        path, old, new = difference
        counter = " Keep a step count as an array, `jnp.zeros((), int)`." if "absent" in (old, new) else ""
        raise TypeError(f"{hint}: `{path}` is {old} before a segment and {new} after it.{counter}")
    leaves = zip(jtu.tree_leaves_with_path(before[1]), jtu.tree_leaves(after[1]), strict=False)
    changed = [dotted(path) or "the whole" for (path, x), y in leaves if x is not y and x != y]
    if changed or jtu.tree_structure(before) != jtu.tree_structure(after):
        what = f" {listing(changed)} changed." if changed else ""
        raise TypeError(f"{hint}, and the same non-arrays.{what} Keep a step count as an array.")


class Lane:
    """Members that one call of the program runs, with their carries.

    Args:
        structure: the training.
        members: the optimizers.
        keys: the random keys, `[seed]` or `[member, seed]`.
        width: for how many members the program is.
    """

    def __init__(self, structure: Structure, members: Members, keys: Keys, width: int):
        self.structure, self.members, self.keys = structure, tuple(members), keys
        self.size = Size(width, keys.shape[1 if structure.key_axes.members else 0])
        self.carry: list[Any] | None = None

    def padded(self, rows: Sequence[Any]) -> list[Any]:
        """The rows, with the last one repeated, for the width of the lane."""
        return [*rows, *([rows[-1]] * (self.size.width - len(rows)))]

    def _arguments(self) -> list[Any]:
        return jtu.tree_leaves(stacked(self.padded(self.members)))

    def _keys(self) -> Keys:
        is_own = self.structure.key_axes.members
        return self.keys[np.array(self.padded(range(len(self.members))))] if is_own else self.keys

    def current(self) -> list[Any]:
        """The carry, with which the members begin unless there is one."""
        if self.carry is None:
            program = self.structure.start
            self.carry = [] if program is None else program(self.size, [*self._arguments(), self._keys()])
        return self.carry

    def advance(self, segment: int) -> list[np.ndarray]:
        """Run a segment, and return the leaves of its metrics, with axes of members and seeds."""
        n = len(self.structure.names)
        try:
            inputs = [self._keys()] if self.structure.start is None else self.current()
            out = self.structure.segment(self.size, [*self._arguments(), *inputs, *self.structure.shared(segment)])
            self.carry = out[:n]
            return [fetched(x)[: len(self.members)] for x in out[n:]]
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise MemoryError(exhausted(self.size.width, self.structure.where.rounded)) from error

    def leave(self) -> None:
        """Move the carry to the host, if there is one, so that the memory of the devices is free for other lanes."""
        if self.carry is not None:
            self.carry = [fetched(x) for x in self.carry]


def check_metrics(structures: Sequence[Structure]) -> None:
    """Raise an error if the metrics differ between structures."""
    first = structures[0]
    for other in structures[1:]:
        if difference := tree_difference(first.metrics, other.metrics):
            name, a, b = difference
            raise ValueError(
                f"The metrics must be the same for all members. For {other.group.label}, `{name}` is {b}; for "
                f"{first.group.label}, it is {a}. Return what has one shape in all of them, such as losses."
            )
