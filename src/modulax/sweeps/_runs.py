"""The runs of a folder: which there are, how far each is trained, and what a sweep must train that asks for some.

A run is a member with a seed. Its name is a hash of the traced program, the description of the member and the random
key, so that it is the same in every sweep that asks for the run. Runs are trained in batches, which a folder notes
before they are trained: a process that was killed goes on with the same batches, in the same programs.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import PyTree

from .._plugin.trees import Names
from ..checkpoint._plugin import nested
from ._folder import Folder
from ._population import Lane
from ._program import fetched
from ._training import Size

Place = tuple[int, int]  # of a run in a batch or a sweep: the member and the seed


@dataclasses.dataclass(eq=False)
class Batch:
    """Runs that are trained together.

    Attributes:
        runs: the names of the runs, `[member, seed]`.
        members: the names of the members.
        seeds: the random keys as integers; none if every member has keys of its own.
        program: the digest of the program.
        width: for how many members the program is.
        first: the first segment. Before it, the runs were in other batches.
        parents: for a run of `pbt` that began as a copy, the run whose carry it got.
        params: the part of a carry that has the parameters.
        is_named: whether the carries on the disk have the names of their leaves, in place of numbers.
        call: the number of the call that trained it.
        number: its place in the folder.
        done: the segment after the last finished one.
        lane: what trains it, as long as its carries are in memory.
        metrics: the leaves of the metrics of each segment.
    """

    runs: list[list[str]]
    members: list[str]
    seeds: list[Any]
    program: str
    width: int
    first: int = 0
    parents: dict[str, str] = dataclasses.field(default_factory=dict)
    params: str | None = None
    is_named: bool = True
    call: int = 0
    number: int = 0
    done: int = 0
    lane: Lane | None = None
    metrics: dict[int, Any] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name in the names of files."""
        return f"{self.number:03d}"

    def places(self) -> dict[str, Place]:
        """The place of each run."""
        return {run: (i, j) for i, row in enumerate(self.runs) for j, run in enumerate(row)}

    def at(self, where: Mapping[str, Place]) -> tuple[list[int], list[int]]:
        """The places of its members and the numbers of its seeds in a sweep that has each run in some place."""
        return [where[row[0]][0] for row in self.runs], [where[run][1] for run in self.runs[0]]

    def record(self) -> dict[str, Any]:
        """What the folder notes."""
        return {name: x for name, x in vars(self).items() if name not in ("number", "done", "lane", "metrics")}


class Start(NamedTuple):
    """From where a run goes on: the segment, the batch that has its carry, and the run in it whose carry it is."""

    segment: int
    batch: Batch | None
    run: str


class Carries(NamedTuple):
    """Where the carries of a sweep are.

    Attributes:
        folder: the folder, or None if there is none.
        runs: the names of the runs, `[member, seed]`.
    """

    folder: Path | None
    runs: np.ndarray

    def of(self, member: int, seed: int) -> tuple[PyTree, str | None]:
        """The carry of a run, as nested dicts, and the part of it that has the parameters."""
        if self.folder is None:
            raise ValueError(
                "The carries of a `Trainable` are kept in a folder only. Write `sweeps.run(..., folder=...)`, or "
                "return the parameters among the metrics."
            )
        run = self.runs[member, seed]
        with Folder(self.folder, reads=True) as folder:
            if (batch := Runs(folder).start(run).batch) is None:
                raise ValueError(
                    f"{folder.name} has no carry of member {member} with seed {seed}: it was not trained, or another "
                    f"member of `pbt` took its place."
                )
            at = batch.places()[run]
            tree = nested({names: x[at] for names, x in folder.carry(batch.label, batch.done - 1).items()})
        return (tree[""] if tree.keys() == {""} else tree), batch.params


class Runs:
    """The runs of a folder, which has been entered.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Folder):
        folder.read()
        self.folder = folder
        self.batches: list[Batch] = []
        self._of = defaultdict[str, list[Batch]](list)
        for record in folder.notes["batches"]:
            self._include(Batch(**record))

    def _include(self, batch: Batch) -> None:
        batch.number = len(self.batches)
        batch.done = self.folder.finished(batch.label, batch.first)
        self.batches.append(batch)
        for run in batch.places():
            self._of[run].append(batch)

    def add(self, batches: Sequence[Batch]) -> None:
        """Note new batches, before anything of them is trained or copied."""
        for batch in batches:
            self.folder.notes["batches"].append(batch.record())
            self._include(batch)
        if batches:
            self.folder.save()

    def describe(self, more: Mapping[str, Any]) -> None:
        """Note what other runs are, besides their batches; an error if they can't be in one folder with these."""
        notes = self.folder.notes
        for name in ("metrics", "in_segments"):
            if notes.setdefault(name, more[name]) != more[name]:
                self._refuse(f"`{name}` was {notes[name]} and is {more[name]}")
        for name, programs in more["programs"].items():
            known = notes["programs"].setdefault(name, programs)
            if not set(known) & set(programs):
                text = more["members"].get(name, {"text": name})["text"]
                what = f"the program of {text.partition('(')[0]} has changed, by the code or the data of the training, "
                what += "by dtypes, or by a function in the optimizer"
                versions = [of_one["calls"][-1]["versions"] for of_one in (notes, more)]
                if versions[0] != versions[1]:
                    what += "; or by another version, since the folder has {}, and these are {}".format(*versions)
                self._refuse(what)
            notes["programs"][name] = list(dict.fromkeys((*known, *programs)))
        for name, paths in more["names"].items():
            notes["names"][name] = list(dict.fromkeys((*notes["names"].get(name, ()), *paths)))
        notes["members"] |= more["members"]
        self.stop(more.get("stopped", {}))
        notes["calls"] += [call for call in more["calls"] if call not in notes["calls"]]

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"{self.folder.name} holds runs of another training: {what}. To add to them, use the training with which "
            f"they were made; for another one, choose another folder."
        )

    def stop(self, ends: Mapping[str, int]) -> None:
        """Note that runs end after so many segments."""
        stopped = self.folder.notes["stopped"]
        stopped |= {run: min(end, stopped.get(run, end)) for run, end in ends.items()}

    def ends(self, names: np.ndarray, total: int) -> np.ndarray:
        """How many segments members are trained for, `[member]`: at most until one of their runs was stopped.

        Args:
            names: the names of the runs, `[member, seed]`.
            total: the number of segments of a member that is not stopped.
        """
        stopped = self.folder.notes["stopped"]
        return np.array([min(total, *(stopped.get(run, total) for run in row)) for row in names])

    def of(self, run: str) -> list[Batch]:
        """The batches of a run, in the order of the folder."""
        return self._of.get(run, [])

    def finished(self, run: str) -> int:
        """The segment after the last finished one of a run."""
        return max((batch.done for batch in self.of(run) if batch.done > batch.first), default=0)

    def _has_carry(self, batch: Batch) -> bool:
        if batch.done == batch.first:
            return False
        return batch.lane is not None or self.folder.has_carry(batch.label, batch.done - 1)

    def start(self, run: str, segment: int | None = None) -> Start:
        """From where a run goes on: from its last carry, or that before a segment; else it begins."""
        found = [x for x in self.of(run) if (segment is None or x.done == segment) and self._has_carry(x)]
        last = max(found, key=lambda x: x.done, default=None)
        return Start(0 if last is None else last.done, last, run)

    def going_on(self, starts: Mapping[str, Start], fits: Callable[[Batch], bool]) -> list[Batch]:
        """The batches that can be trained as they are, because all of their runs are asked for.

        Args:
            starts: the runs that are asked for, and from where each goes on.
            fits: whether a batch can be trained on these devices.
        """
        found, left = list[Batch](), {run: start.segment for run, start in starts.items()}
        for batch in reversed(self.batches):
            places = batch.places()
            is_whole = all(left.get(run) == batch.done for run in places)
            if is_whole and (batch.done == batch.first or self._has_carry(batch)) and fits(batch):
                found.append(batch)
                for run in places:
                    del left[run]
        return found[::-1]

    def carry(self, batch: Batch, lane: Lane) -> list[Any]:
        """The carries of a batch: of all leaves, those of all members and seeds.

        Args:
            batch: the batch.
            lane: a lane of the same structure.
        """
        if batch.lane is not None and batch.lane.carry is not None:
            return batch.lane.carry
        found = self.folder.carry(batch.label, batch.done - 1)
        shapes = lane.structure.carry_shapes(Size(batch.width, len(batch.runs[0])))
        pairs = zip(self._names(batch, lane), shapes, strict=True)
        return [found[name] if name in found else np.zeros(x.shape, x.dtype) for name, x in pairs]  # if it is empty

    def _names(self, batch: Batch, lane: Lane) -> list[Names]:
        """The names of the leaves of the carries on the disk."""
        names = lane.structure.names
        return names if batch.is_named else [(f"{i:04d}",) for i in range(len(names))]

    def gathered(self, lane: Lane, starts: Sequence[Sequence[Start]]) -> list[Any]:
        """The carries of runs in other batches, `[member, seed]`, for a lane."""
        batches = {start.batch.number: start.batch for row in starts for start in row if start.batch is not None}
        places = {number: batch.places() for number, batch in batches.items()}
        rows = [[(x.batch.number, *places[x.batch.number][x.run]) for x in row if x.batch] for row in starts]
        rows = lane.padded(rows)
        carries = {number: self.carry(batch, lane) for number, batch in batches.items()}
        if len(batches) == 1:  # the carry stays on the devices
            (carry,) = carries.values()
            at = np.array(rows)
            return [x[at[:, :, 1], at[:, :, 2]] for x in carry]
        hosts = {number: [fetched(x) for x in carry] for number, carry in carries.items()}
        return [_stacked(hosts, rows, leaf) for leaf in range(len(lane.structure.names))]

    def write(self, batch: Batch, metrics: list[np.ndarray]) -> None:
        """Write a segment of a batch that was trained."""
        carry = {}
        if self.folder.path is not None and (lane := batch.lane) is not None:
            carry = dict(zip(self._names(batch, lane), lane.current(), strict=True))
        self.folder.write(batch.label, batch.done, metrics, carry)
        batch.metrics[batch.done] = metrics
        batch.done += 1

    def tidy(self, spent: Collection[str] = ()) -> None:
        """Delete the carries from which nothing goes on: those of earlier segments, and of runs that are further.

        Args:
            spent: runs that never go on.
        """
        waiting = {run for x in self.batches if x.done == x.first for run in x.parents.values()}
        for number, segment in self.folder.carries():
            batch = self.batches[number] if number < len(self.batches) else None
            if batch is not None and segment < batch.done:
                is_over = (run in spent or self.finished(run) > batch.done for run in batch.places())
                if segment < batch.done - 1 or (waiting.isdisjoint(batch.places()) and all(is_over)):
                    self.folder.forget(batch.label, segment)

    def metrics_of(self, batch: Batch, segment: int) -> list[np.ndarray]:
        """The leaves of the metrics of a segment, `[member, seed, ...]`."""
        if segment not in batch.metrics:
            batch.metrics[segment] = self.folder.metrics(batch.label, segment)
        return batch.metrics[segment]

    def fill(self, arrays: Sequence[np.ndarray], trained: np.ndarray) -> None:
        """Write the metrics of runs into arrays, `[member, seed, segment, ...]`.

        Args:
            arrays: an array for each leaf of the metrics.
            trained: the name of the run that was trained in each segment, or `""`, `[member, seed, segment]`.
        """
        rows = defaultdict[str, list[Place]](list)
        for i, j in np.ndindex(trained.shape[:2]):
            for run in set(trained[i, j]):
                rows[run].append((i, j))
        for batch in reversed(self.batches):  # of several with a run, the first has the last word
            found = [(run, *to, *at) for run, at in batch.places().items() for to in rows.get(run, ())]
            if not found:
                continue
            runs, *places = (np.array(x) for x in zip(*found, strict=True))
            for segment in range(batch.first, min(batch.done, trained.shape[2])):
                is_here = trained[places[0], places[1], segment] == runs
                i, j, row, column = (x[is_here] for x in places)
                for array, x in zip(arrays, self.metrics_of(batch, segment), strict=True):
                    array[i, j, segment] = x[row, column]

    def history(self, run: str) -> dict[int, str]:
        """The run that was trained in each segment: itself, and before it began as a copy, the one it is a copy of."""
        own = [batch for batch in self.of(run) if batch.done > batch.first]
        found = {segment: run for batch in own for segment in range(batch.first, batch.done)}
        parents = {batch.parents[run] for batch in own if run in batch.parents}
        return functools.reduce(lambda later, parent: self.history(parent) | later, parents, found)


def _stacked(carries: Mapping[int, Sequence[np.ndarray]], rows: Sequence[Any], leaf: int) -> np.ndarray:
    """A leaf of carries of several batches, for rows of runs that are named by batch, member and seed."""
    return np.stack([np.stack([carries[number][leaf][i, j] for number, i, j in row]) for row in rows])
