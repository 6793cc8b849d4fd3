"""The members of a sweep in training: structures, which have a program, and lanes, which run it.

A `Structure` is the training traced for the members of one structure. A `Lane` is a fixed number of these members with
their carries: what one call of the program runs. If there are fewer members than the lane is wide, the last one is
repeated, so that there is one program for all lanes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray, PyTree

from .._support.checks import listing
from ..tree._paths import dotted
from ._memory import peak
from ._sweep import Group, Members, stacked
from ._training import Axes, Placement, Program, Train, Trainable, as_metrics, in_segments, shape_of, trace

HYPERPARAMETER, KEY, CARRY = Axes(members=True, seeds=False), Axes(members=False, seeds=True), Axes(True, True)


class Structure:
    """A training for optimizers of one structure: how members begin, and one segment of it.

    A plain `train` has an empty carry and one segment, which takes the random keys.
    """

    def __init__(self, training: Any, group: Group, keys: PRNGKeyArray, where: Placement):
        self.group, self.keys, self.where = group, keys, where
        optimizer = group.members[0]
        self.numbers = [HYPERPARAMETER] * len(jtu.tree_leaves(optimizer))
        self.start: Program | None = None
        self.carry: list[jax.ShapeDtypeStruct] = []  # of one member and seed
        segments = in_segments(training)
        if segments is not None:
            self._trace_segments(segments, optimizer)
            return

        def train(optimizer: PyTree, key: PRNGKeyArray) -> PyTree:
            return as_metrics("train", training(optimizer, key))

        traced = trace("train", train, optimizer, keys[0])
        self.metrics = traced.result
        self.segment = Program(traced, [*self.numbers, KEY], where)

    def _trace_segments(self, training: Trainable, optimizer: PyTree) -> None:
        static: list[PyTree] = []

        def start(optimizer: PyTree, key: PRNGKeyArray) -> PyTree:
            arrays, rest = eqx.partition(training.start(optimizer, key), eqx.is_array)
            static.append(rest)
            return arrays

        def advance(optimizer: PyTree, arrays: PyTree) -> tuple[PyTree, PyTree]:
            out = training.advance(optimizer, eqx.combine(arrays, static[0]))
            if not isinstance(out, tuple) or len(out) != 2:
                raise TypeError(
                    f"`advance` must return a pair, `(carry, metrics)`, and it returned {type(out).__name__}."
                )
            following, rest = eqx.partition(out[0], eqx.is_array)
            _check_carry((arrays, static[0]), (following, rest))
            return following, as_metrics("advance", out[1])

        begun = trace("start", start, optimizer, self.keys[0])
        self.start = Program(begun, [*self.numbers, KEY], self.where)
        self.carry = jtu.tree_leaves(begun.result)
        traced = trace("advance", advance, optimizer, begun.result)
        self.metrics = traced.result[1]
        first = len(self.numbers)
        axes = [*self.numbers, *([CARRY] * len(self.carry))]
        self.segment = Program(traced, axes, self.where, donated=range(first, first + len(self.carry)))

    def needed(self, width: int) -> int:
        """The bytes per device that a lane of so many members needs at its peak; the program is compiled for that."""
        numbers = [_with_axes(shape_of(x), width) for x in jtu.tree_leaves(self.group.members[0])]
        if self.start is None:
            return peak(self.segment.compiled(width, [*numbers, self.keys]))
        carry = [_with_axes(x, width, len(self.keys)) for x in self.carry]
        programs = self.start.compiled(width, [*numbers, self.keys]), self.segment.compiled(width, [*numbers, *carry])
        return max(map(peak, programs))


def _with_axes(x: jax.ShapeDtypeStruct, *axes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*axes, *x.shape), x.dtype)


def _kinds(tree: PyTree) -> dict[str, str]:
    """The dtype and shape of every array, by dotted path."""
    return {dotted(path): f"{x.dtype}{list(x.shape)}" for path, x in jtu.tree_leaves_with_path(tree)}


def _check_carry(before: tuple[PyTree, PyTree], after: tuple[PyTree, PyTree]) -> None:
    """Raise an error if a segment changes the structure, a shape, a dtype or a non-array of the carry."""
    hint = "The carry that `advance` returns must have the structure, shapes and dtypes of the one that it takes"
    old, new = _kinds(before[0]), _kinds(after[0])
    for path in dict.fromkeys((*old, *new)):
        a, b = old.get(path, "absent"), new.get(path, "absent")
        if a != b:
            raise TypeError(f"{hint}: `{path}` is {a} before a segment and {b} after it.")
    leaves = list(zip(jtu.tree_leaves_with_path(before[1]), jtu.tree_leaves(after[1]), strict=False))
    changed = [dotted(path) for (path, x), y in leaves if x is not y and x != y]
    if changed or jtu.tree_structure(before) != jtu.tree_structure(after):
        what = f" {listing(changed)} changed." if changed else ""
        raise TypeError(f"{hint}, and the same non-arrays.{what} Keep a step count as an array.")


class Lane:
    """Members that one call of the program runs, with their carries.

    Args:
        structure: the training.
        places: the places of the members in the sweep.
        members: the optimizers.
        width: for how many members the program is.
    """

    def __init__(self, structure: Structure, places: Sequence[int], members: Members, width: int):
        self.structure, self.places, self.members, self.width = structure, list(places), tuple(members), width
        self.carry: list[Any] | None = None

    @property
    def _numbers(self) -> list[Any]:
        missing = self.width - len(self.members)
        return jtu.tree_leaves(stacked([*self.members, *([self.members[-1]] * missing)]))

    def start(self) -> None:
        """Begin the training of all members."""
        program = self.structure.start
        self.carry = [] if program is None else program(self.width, [*self._numbers, self.structure.keys])

    def advance(self) -> list[np.ndarray]:
        """Run one segment, and return the leaves of its metrics, with axes of members and seeds."""
        if self.carry is None:
            self.start()
        given = [self.structure.keys] if self.structure.start is None else self.carry
        out = self.structure.segment(self.width, [*self._numbers, *(given or ())])
        n = len(self.structure.carry)
        self.carry = out[:n]
        return [fetched(x)[: len(self.members)] for x in out[n:]]

    def template(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes and placement of the carry, to restore it."""
        sharding = self.structure.where.of_members()
        shapes = [_with_axes(x, self.width, len(self.structure.keys)) for x in self.structure.carry]
        return [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in shapes]


def fetched(x: jax.Array) -> np.ndarray:
    """An array on the host, in every process."""
    if not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def lanes(structure: Structure, places: Sequence[int], members: Members, width: int) -> list[Lane]:
    """Members in lanes of one width."""
    starts = range(0, len(places), width)
    return [Lane(structure, places[i : i + width], members[i : i + width], width) for i in starts]


def regrouped(old: Iterable[Lane], places: Sequence[int], members: Members, width: int) -> list[Lane]:
    """Lanes of other members of one structure, whose carries are those that the places have in the old lanes.

    A place may occur several times, if members continue from the same carry.
    """
    old = list(old)
    new = lanes(old[0].structure, places, members, width)
    if any(lane.carry is None for lane in old):
        return new
    home = {place: (lane, row) for lane in old for row, place in enumerate(lane.places)}
    for lane in new:
        sources = [home[place] for place in lane.places]
        sources += [sources[-1]] * (width - len(sources))
        only = sources[0][0]
        rows = np.array([row for _, row in sources])
        if all(source is only for source, _ in sources):
            lane.carry = [x[rows] for x in only.carry or ()]
        else:
            lane.carry = [
                jnp.stack([(source.carry or [])[i][row] for source, row in sources])
                for i in range(len(only.carry or ()))
            ]
    return new


def structures(
    training: Train | Trainable, groups: Sequence[Group], keys: PRNGKeyArray, where: Placement
) -> list[Structure]:
    """The training traced for every structure; an error if the metrics differ."""
    found = [Structure(training, group, keys, where) for group in groups]
    first, *others = found
    for other in others:
        a, b = _kinds(first.metrics), _kinds(other.metrics)
        if a != b or jtu.tree_structure(first.metrics) != jtu.tree_structure(other.metrics):
            name = next((name for name in (*a, *b) if a.get(name) != b.get(name)), "the structure")
            raise ValueError(
                f"The metrics must be the same for all members. For {other.group.label}, `{name}` is "
                f"{b.get(name, 'absent')}; for {first.group.label}, it is {a.get(name, 'absent')}."
            )
    return found
