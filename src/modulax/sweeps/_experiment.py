"""A sweep in training: what it asks for, and the batches in which what is missing of that is trained."""

import contextlib
import itertools
import math
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer
from .._plugin.arrays import is_key_data, is_typed_key
from .._plugin.messages import listing, one_line
from ..authoring import AbstractTransform
from ._data import as_data
from ._folder import Folder
from ._hooks import AbstractHooks, Progress, Row, rows_of
from ._loaded import loaded
from ._memory import budget_of, fitting, size_text
from ._over import Over, in_shapes, trainings
from ._population import Lane, Structure, check_metrics
from ._program import arrays_by_path, described, name_of, without_numbers
from ._results import Results, blanks, csv_of, results_of
from ._runs import Batch, Carries, Place, Runs, Start
from ._sweep import Members, Sweep, as_sweep, shown_shape, values_of
from ._tasks import Workers
from ._training import Size, Train, Trainable, check_training, in_segments, placement


class Settings(NamedTuple):
    """The arguments of `run` and of the searches that say how a sweep is trained, and who sees it."""

    chunk: int | None
    memory: float | int | None
    folder: str | os.PathLike[str] | None
    tags: Mapping[str, Any] | None
    progress: bool
    hooks: AbstractHooks
    workers: Workers | None = None


class Experiment:
    """A sweep with everything that its training needs: traced programs, keys, devices, and its runs.

    `run` and the searches share it. Members are trained within a `session`.

    Args:
        sweep: the optimizers.
        training: `train`, a `Trainable`, or several by `over`.
        seeds: the number of seeds.
        key: the random key of the sweep, which is split into those of the seeds.
        devices: the devices, a number of them, or None for all.
        segments: the number of segments.
        data: the data of the segments, as the user gives them; or None.
        name: the function that the user called, for error messages.
        own_keys: whether every member has keys of its own, in place of the same ones.
    """

    def __init__(
        self,
        sweep: Sweep | Members | AbstractTransform,
        training: Train | Trainable | Over,
        *,
        seeds: int = 1,
        key: PRNGKeyArray | None,
        devices: Any,
        segments: int,
        data: Any = None,
        name: str = "sweeps.run",
        own_keys: bool = False,
    ):
        if in_shapes(training) is None:
            check_training(name, training, segments, has_data=data is not None)  # first: the two may have been swapped
        self.sweep, of_groups = trainings(name, as_sweep(sweep), training)
        for of_one in of_groups:
            check_training(name, of_one, segments, has_data=data is not None)
        check_integer(name, "seeds", seeds)
        check_integer(name, "segments", segments)
        self.seeds, self.total, self.in_segments = seeds, segments, in_segments(of_groups[0]) is not None
        self.key = checked_key(name, key)
        self.keys = jax.random.split(self.key, (len(self.sweep), seeds) if own_keys else (seeds,))
        self.where, self._own_keys = placement(devices), own_keys
        shape = jax.ShapeDtypeStruct(self.keys.shape[1 + own_keys :], self.keys.dtype)
        self.data = as_data(data, self.where)
        self.structures = [
            Structure(of_one, group, shape, self.where, own_keys=own_keys, data=self.data, again=group.places[0] == 0)
            for of_one, group in zip(of_groups, self.sweep.groups, strict=True)
        ]
        check_metrics(self.structures)
        leaves, self.treedef = jtu.tree_flatten(self.structures[0].metrics)
        self.metrics = arrays_by_path(self.structures[0].metrics, "metric")
        self.leaves = [((seeds, segments, *x.shape), x.dtype) for x in leaves]
        self._widths: dict[tuple[Structure, int], int] = {}
        self._call = 0  # its number in the folder
        self._next_table = 0.0
        self.take(self.sweep)

    def take(self, sweep: Sweep) -> None:
        """Begin with the members of a sweep, which has the structures of the first one."""
        self.sweep, self.runs = sweep, Runs(Folder(None))
        self.members: list[AbstractTransform] = list(sweep)
        self._structure_of = {place: i for i, group in enumerate(sweep.groups) for place in group.places}
        self.segments = np.zeros(len(sweep), int)
        self.history: dict[str, np.ndarray] = {}  # hyperparameters that change, [member, segment]
        self._parents: dict[str, tuple[str, int]] = {}
        self.names = np.full((len(sweep), self.seeds), "", object)  # of the runs
        self._trained = np.full((len(sweep), self.seeds, self.total), "", object)

    @contextlib.contextmanager
    def session(
        self, kind: str, settings: Settings, work: int, *, share: float = 1.0, least: int = 1, search: Any = ""
    ) -> Iterator[None]:
        """Open the folder and the progress bar.

        Args:
            kind: the name of the search.
            settings: the settings of the user.
            work: the number of segments of members.
            share: the fraction of the members that is trained at a time, unless the user gives their number.
            least: the number of members for which programs are, also if there are fewer.
            search: what the runs depend on, in addition to their members, keys and programs.
        """
        if settings.chunk is not None:
            check_integer("sweeps.run", "chunk", settings.chunk)
        self._settings, self._share, self._least = settings, share, least
        with (
            Folder(settings.folder) as folder,
            Progress(settings.progress) as self.bar,
            settings.hooks as self.hooks,
            contextlib.nullcontext() if self.data is None else self.data.reading(folder, self.total),
        ):
            self.runs = Runs(folder)
            # All processes have read the folder when the first one writes to it, since all must take part in this.
            self._budget = budget_of(list(self.where.mesh.devices.flat), settings.memory)
            self._programs = [x.digest() if folder.path or settings.workers else "" for x in self.structures]
            if settings.workers is not None:
                self._budget = math.inf  # a worker looks at its own memory
                settings.workers.prepare(self.structures, self._programs, self.data, folder.path)
            self.describe(kind, search)
            self.bar.total(work * self.seeds)
            try:
                yield
                self._save_table()  # also of a process that was killed before it did
            except KeyboardInterrupt:
                if settings.folder is not None:
                    self.bar.say(f"Interrupted. Run it again to go on from `folder={str(settings.folder)!r}`.")
                raise

    def describe(self, kind: str, search: Any = "") -> None:
        """Name the runs, and note in the folder what they are; an error if they can't be in it."""
        folder, places = self.runs.folder, range(len(self.sweep))
        noted = list(map(self._noted, places)) if folder.path else [(str(place), {}) for place in places]
        self._member_names = [name for name, _ in noted]
        if folder.path is not None:
            programs = defaultdict[str, list[str]](list)
            for structure, program in zip(self.structures, self._programs, strict=True):
                group = structure.group
                programs[without_numbers(group.members[0], shown_shape(group.shape))].append(program)
            for place, member in enumerate(self._member_names):
                programs[member].append(self._programs[self._structure_of[place]])
            calls = folder.notes["calls"]
            tags = (calls[-1]["tags"] if calls else {}) | dict(self._settings.tags or {})
            call = {"kind": kind, "versions": _versions(), "commit": _commit(), "tags": tags}
            self.runs.describe({
                "metrics": self.metrics,
                "in_segments": self.in_segments,
                "programs": programs,
                "names": self.sweep.names,
                "members": dict(noted),
                "calls": [call],
            })  # fmt: skip
            self._call = calls.index(call)
            folder.save()
        self._key_data = np.asarray(jax.random.key_data(self.keys)).tolist()
        for (place, seed), _ in np.ndenumerate(self.names):
            key = self._key_data[place][seed] if self._own_keys else self._key_data[seed]
            program = self._programs[self._structure_of[place]]
            self.names[place, seed] = name_of(program, self._member_names[place], key, search)
        self.ends = self.runs.ends(self.names, self.total)  # of members; earlier where a hook has stopped one

    def _noted(self, place: int) -> tuple[str, dict[str, Any]]:
        """What a folder notes of the member in a place, by its name."""
        member, shape = self.members[place], shown_shape(self.sweep.shapes[place])
        about = {"text": one_line(member), "label": self.sweep.labels[place], "values": values_of(member) | shape}
        return name_of(described(member, shape)), about

    def replace(self, place: int, member: AbstractTransform, parent: int, segment: int) -> None:
        """Put another member in a place, which goes on from the carry that its parent has before a segment."""
        self.members[place] = member
        name, about = self._noted(place)
        self._member_names[place] = name
        self.runs.folder.notes["members"][name] = about
        for seed, run in enumerate(self._trained[parent, :, segment - 1]):
            name = name_of(run, segment, place, self._member_names[place])
            self.names[place, seed], self._parents[name] = name, (run, segment)

    def train(
        self,
        places: Sequence[int],
        last: int,
        *,
        keeps: bool = False,
        spent: Collection[str] | None = None,
        prepare: Callable[[Lane, list[int]], None] = lambda lane, places: None,
    ) -> None:
        """Train members up to segment `last`: those of their runs that are not there yet.

        Args:
            places: the places of the members.
            last: the segment after the last one.
            keeps: whether the carries stay in memory, since the next call goes on from them.
            spent: in a search that copies carries, the runs that never go on; None in others.
            prepare: called with each lane that begins, and the places of its members.
        """
        self._last, self._prepare, self._places = last, prepare, dict[str, Place]()
        self._is_whole = spent is None  # all segments of a batch may be in one, since nothing else goes on from it
        for place in places:
            self._trained[place, :, self.segments[place] : last] = self.names[place][:, None]
        for place, seed in itertools.product(places, range(self.seeds)):
            self._places.setdefault(self.names[place, seed], (place, seed))
        self._starts = {run: self._start(run) for run in self._places if self.runs.finished(run) < last}
        batches = self._batches()
        asked = int((last - self.segments[places]).sum()) * self.seeds
        self.bar.advance(asked - sum(len(batch.places()) * (last - batch.done) for batch in batches))
        if self.hooks.are_there:  # what they get of the segments that are trained already
            self._table, self.so_far = self.sweep.table(), blanks(len(self.sweep), self.leaves)
            self.runs.fill(self.so_far, self._trained)
        if (workers := self._settings.workers) is None:
            trained = self._trained_here(batches)
        else:
            is_watched = self.runs.folder.path is not None or self.hooks.are_there
            trained = workers.trained(batches, self._begin, self._goes_on, None if is_watched else last, keeps)
        with contextlib.closing(trained):
            for batch, metrics in trained:
                # Before the segment is written: after a kill between the two, the hooks get it again, and miss nothing.
                self._call_hooks(batch, metrics)
                self.runs.write(batch, metrics)
                self.runs.tidy(spent or ())
                self.bar.advance(len(batch.places()))
                if not self._goes_on(batch):
                    self.bar.advance(len(batch.places()) * (last - batch.done))  # what stopped members leave out
                    batch.lane = batch.lane if keeps else None  # frees the memory
                    if time.monotonic() > self._next_table:
                        self._save_table()
        for batch in self.runs.batches:
            batch.lane = batch.lane if keeps and batch in batches else None
        self.segments[places] = np.minimum(self.ends[places], last)

    def _batches(self) -> list[Batch]:
        """The batches that train runs further: those that can go on as they are, and new ones for the others."""
        where, starts = self._places, self._starts
        wanted = [run for run in starts if self.runs.finished(run) < self.ends[where[run][0]]]  # others are stopped
        batches = self.runs.going_on(starts, self._fits)
        batches = [batch for batch in batches if not batch.places().keys().isdisjoint(wanted)]
        are_chosen = {run for batch in batches for run in batch.places()}
        return batches + self._new_batches({where[run]: starts[run].segment for run in wanted if run not in are_chosen})

    def _begin(self, batch: Batch) -> str:
        """Give a batch its lane with the carry from which it goes on, and return what it is called."""
        rows, seeds = batch.at(self._places)
        if batch.lane is None:
            structure, which = self.structures[self._structure_of[rows[0]]], np.array(seeds)
            keys = self.keys[np.array(rows)][:, which] if self._own_keys else self.keys[which]
            batch.lane = Lane(structure, [self.members[place] for place in rows], keys, batch.width)
        lane = batch.lane
        if lane.carry is None and batch.done > 0:
            is_new = batch.done == batch.first
            of_runs = [[self._starts[run] for run in row] for row in batch.runs]
            lane.carry = self.runs.gathered(lane, of_runs) if is_new else self.runs.carry(batch, lane)
        if batch.done == batch.first:
            self._prepare(lane, rows)
        return f"the members {listing(rows)} with the seeds {listing(seeds)}"

    def _goes_on(self, batch: Batch) -> bool:
        """Whether another segment of a batch is to be trained."""
        rows, _ = batch.at(self._places)
        return batch.done < self._last and bool((self.ends[rows] > batch.done).any())

    def _trained_here(self, batches: Sequence[Batch]) -> Generator[tuple[Batch, list[np.ndarray]], None, None]:
        """Train batches, one at a time, and yield the metrics of each segment.

        With data, a segment is trained in all batches before the next one is read.
        """
        first = min((batch.done for batch in batches), default=self._last)
        ends = [self._last] if self.data is None else range(first + 1, self._last + 1)
        for end, batch in itertools.product(ends, batches):
            if batch.done < end and self._goes_on(batch):
                self._begin(batch)
            while batch.done < end and self._goes_on(batch) and batch.lane is not None:
                yield batch, batch.lane.advance(batch.done)
            if len(batches) > 1 and batch.lane is not None:
                batch.lane.leave()

    def _call_hooks(self, batch: Batch, metrics: list[np.ndarray]) -> None:
        """Call the hooks with the runs of a batch that are not stopped, and note which ones they stop.

        Args:
            batch: the batch.
            metrics: the leaves of the metrics of its segment.
        """
        if not self.hooks.are_there:
            return
        places, seeds = batch.at(self._places)
        segment, rows = batch.done, list[Row]()
        for all_of_them, x in zip(self.so_far, metrics, strict=True):
            all_of_them[np.array(places)[:, None], seeds, segment] = x
        for member in places:
            if self.ends[member] > segment:
                changing = {name: x[member] for name, x in self.history.items()}
                values = {name: x[segment].item() for name, x in changing.items()}
                named = {name: x[member] for name, x in zip(self.metrics, self.so_far, strict=True)}
                named |= {f"hyperparameters.{name}": x[None] for name, x in changing.items()}
                rows += rows_of(member, seeds, segment, self._table[member] | values, named)
        stopped = self.hooks(rows) if jax.process_index() == 0 else set()
        is_stopped = np.isin(places, list(stopped))
        if jax.process_count() > 1:
            is_stopped = multihost_utils.broadcast_one_to_all(is_stopped)
        if is_stopped.any():
            of_members = itertools.compress(batch.runs, is_stopped)
            self.runs.stop(dict.fromkeys(itertools.chain(*of_members), segment + 1))
            self.runs.folder.save()
            self.ends = self.runs.ends(self.names, self.total)

    def _start(self, run: str) -> Start:
        """From where a run goes on."""
        start = self.runs.start(run)
        if start.batch is None and run in self._parents:
            parent, segment = self._parents[run]
            start = self.runs.start(parent, segment)
            if start.batch is None:
                raise ValueError(
                    f"{self.runs.folder.name} holds another search with the same members, whose carries after segment "
                    f"{segment} are no more. If a function in `explore` has changed, choose another folder, or go on "
                    f"with the old one."
                )
        return start

    def _fits(self, batch: Batch) -> bool:
        """Whether a batch can go on as it is, with these devices and chunks."""
        chunk = self._settings.chunk
        is_small = chunk is None or batch.width <= self.where.rounded(chunk)
        return is_small and batch.width % self.where.mesh.size == 0 and (self._is_whole or batch.done == batch.first)

    def _new_batches(self, firsts: Mapping[Place, int]) -> list[Batch]:
        """Batches for runs, of members of one structure that go on from one segment with the same seeds."""
        seeds_of = defaultdict[tuple[int, int], list[int]](list)
        for (place, seed), first in firsts.items():
            seeds_of[place, first].append(seed)
        groups = defaultdict[tuple[int, int, tuple[int, ...]], list[int]](list)
        for (place, first), seeds in seeds_of.items():
            groups[self._structure_of[place], first, tuple(seeds)].append(place)
        batches = []
        for (number, first, seeds), places in groups.items():
            width = self.width(self.structures[number], max(len(places), self._least), len(seeds))
            for rows in (places[i : i + width] for i in range(0, len(places), width)):
                runs = [[self.names[place, seed] for seed in seeds] for place in rows]
                parents = {run: self._parents[run][0] for row in runs for run in row if run in self._parents}
                members = [self._member_names[place] for place in rows]
                keys = [] if self._own_keys else [self._key_data[seed] for seed in seeds]
                program, params = self._programs[number], self.structures[number].params
                batches.append(Batch(runs, members, keys, program, width, first, parents, params, call=self._call))
        self.runs.add(batches)
        return batches

    def width(self, structure: Structure, members: int, seeds: int) -> int:
        """How many members of a structure are trained at a time, of so many."""
        chunk, known = self._settings.chunk, self._widths.get((structure, seeds))
        if (workers := self._settings.workers) is not None and chunk is None:
            chunk = workers.chunk(members)
        if known is not None and self.where.rounded(members) > self._share * known:
            return known  # whose program is compiled
        most = members if chunk is not None or known is not None else math.ceil(self._share * members)
        width = fitting(lambda n: structure.needed(Size(n, seeds)), most, self.where.rounded, chunk, self._budget)
        if width < most and workers is None:
            size, copies = size_text(structure.needed(Size(width, seeds))), -members % width
            padding = f", and {copies} copies to fill the last chunk" if copies else ""
            self.bar.say(
                f"{structure.group.label}: {width} of {members} members at a time, {size} per device{padding}."
            )
        self._widths[structure, seeds] = width
        return width

    def _save_table(self) -> None:
        """Write the table of all runs of the folder, which takes at most a tenth of the time."""
        begin = time.monotonic()
        self.runs.folder.write_text("results.csv", lambda: csv_of(loaded(self.runs)))
        self._next_table = time.monotonic() + 10 * (time.monotonic() - begin)

    def results(self, sweep: Sweep | None = None, **more: Any) -> Results:
        """The results so far.

        Args:
            sweep: the members, if they have changed.
            **more: other fields.
        """
        firsts = [self.runs.of(self.names[structure.group.places[0], 0]) for structure in self.structures]
        chunk = tuple(batches[-1].width for batches in firsts if batches)
        carries = Carries(self.runs.folder.path, self.names.copy()) if self.in_segments else None
        more = {"chunk": chunk, "carries": carries} | more
        sweep = self.sweep if sweep is None else sweep
        return self.results_of(sweep, self.trained_metrics(), self.segments, **more)

    def trained_metrics(self) -> list[np.ndarray]:
        """The leaves of the metrics so far, `[member, seed, segment]`; blank after the last segment of a member."""
        metrics = blanks(len(self.sweep), self.leaves)
        self.runs.fill(metrics, np.where(np.arange(self.total) < self.segments[:, None, None], self._trained, ""))
        return metrics

    def results_of(self, sweep: Sweep, metrics: Sequence[np.ndarray], segments: np.ndarray, **more: Any) -> Results:
        """The results of any members, from the leaves of their metrics, `[member, seed, segment]`."""
        is_trained = np.arange(self.total) < segments[:, None, None]
        more |= {"sweep": sweep, "segments": segments.copy(), "keys": self.keys}
        return results_of(metrics, is_trained, self.treedef.unflatten, self.in_segments, **more)


def checked_key(name: str, key: Any) -> PRNGKeyArray:
    """The random key of a sweep; an error if it isn't one key."""
    if key is None:
        return jax.random.key(0)
    if not (is_typed_key(key) and key.ndim == 0) and not (is_key_data(key) and np.ndim(key) == 1):
        what = f"an array of shape {np.shape(key)}" if np.ndim(key) else repr(key)
        raise ValueError(
            f"`{name}(key=...)` must be one random key, such as `jax.random.key(0)`, got {what}. It is split into one "
            f"per seed."
        )
    return key


def _versions() -> dict[str, str]:
    """The versions on which the program depends, as far as they are installed as packages."""
    packages = [*metadata.distributions(name="jax"), *metadata.distributions(name="modulax")]
    return {package.name: package.version for package in packages}


def _commit() -> str | None:
    """The git commit of the current directory, with `-dirty` if files have changed; None if there is none."""
    try:
        call = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
