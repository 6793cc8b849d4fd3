"""`run`: train all members of a sweep."""

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PRNGKeyArray

from .._protocol.transform import AbstractTransform
from .._support.checks import check_integer
from .._support.keys import is_key_data, is_typed_key
from ..tree._paths import dotted
from ._description import described
from ._folder import Folder
from ._hooks import Hook, Hooks, Row, rows_of
from ._memory import budget_of, fitting, size_text
from ._population import Lane, Structure, arrays_by_path, lanes, structures
from ._progress import Progress
from ._results import Results, csv_of
from ._sweep import Members, Sweep, as_sweep
from ._training import Train, Trainable, check_arguments, in_segments, placement


class Settings(NamedTuple):
    """The arguments of `run` and of the searches that say how a sweep is trained, and who sees it.

    The folder of a sweep is not compared with them.
    """

    chunk: int | None
    memory: float | int | None
    folder: str | os.PathLike[str] | None
    progress: bool
    on_segment: Hook | Sequence[Hook] | None = None


class Experiment:
    """A sweep with everything that its training needs: traced programs, keys, devices, metrics so far.

    `run` and the searches share it. Members are trained in lanes, within a `session`.

    Args:
        sweep: the optimizers.
        training: `train` or a `Trainable`.
        seeds: the number of seeds.
        key: the random key of the sweep, which is split into those of the seeds.
        devices: the devices, a number of them, or None for all.
        segments: the number of segments.
        name: the function that the user called, for error messages.
        own_keys: whether every member has keys of its own, in place of the same ones.
    """

    def __init__(
        self,
        sweep: Sweep | Members | AbstractTransform,
        training: Train | Trainable,
        *,
        seeds: int = 1,
        key: PRNGKeyArray | None,
        devices: Any,
        segments: int,
        name: str = "sweeps.run",
        own_keys: bool = False,
    ):
        check_training(name, training, segments)
        check_integer(name, "seeds", seeds)
        check_integer(name, "segments", segments)
        self.sweep = as_sweep(sweep)
        self.training, self.total = training, segments
        self.key = checked_key(name, key)
        self.keys = jax.random.split(self.key, (len(self.sweep), seeds) if own_keys else (seeds,))
        self.where = placement(devices)
        self.structures = structures(training, self.sweep.groups, self.keys, self.where, own_keys=own_keys)
        leaves, self.treedef = jtu.tree_flatten_with_path(self.structures[0].metrics)
        self.names = [dotted(path) or "metric" for path, _ in leaves]
        self.metrics = [blank((len(self.sweep), seeds, segments, *x.shape), x.dtype) for _, x in leaves]
        self.segments = np.zeros(len(self.sweep), int)
        self.ends = np.full(len(self.sweep), segments)  # earlier for a member that a hook has stopped
        self.history: dict[str, np.ndarray] = {}  # hyperparameters that change, [member, segment]
        self.widths: list[int] = []
        self._last_carries: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def session(self, kind: str, settings: Settings, work: int, share: float = 1.0, **more: Any) -> Iterator[None]:
        """Open the folder and the progress bar, and decide how many members are trained at a time.

        Args:
            kind: the name of the search.
            settings: the settings of the user.
            work: the number of segments of members.
            share: the fraction of the members that is trained at a time, unless the user gives their number.
            **more: what the results depend on, in addition to the members.
        """
        with (
            Folder(settings.folder, lambda: self._described(kind) | more) as self.folder,
            Progress(settings.progress) as self.bar,
            Hooks(settings.on_segment, may_stop=kind != "pbt") as self.hooks,
        ):
            for member, end in (self.folder.note("stopped") or {}).items():
                self.ends[int(member)] = min(end, self.total)
            # Before the folder is read, where another process may be further: all must take part.
            budget = budget_of(list(self.where.mesh.devices.flat), settings.memory)
            widths = self.folder.widths(len(self.structures))
            if widths is not None and (settings.chunk is None or self.folder.has_metrics()):
                self._check_widths(widths, settings.chunk)
                self.widths = widths
            else:
                self.widths = [self._width(structure, settings.chunk, share, budget) for structure in self.structures]
                self.folder.set_note("chunk", self.widths)
            self.bar.total(work)
            try:
                yield
            except KeyboardInterrupt:
                if settings.folder is not None:
                    self.bar.say(f"Interrupted. Run it again to go on from `folder={str(settings.folder)!r}`.")
                raise

    def _described(self, kind: str) -> dict[str, Any]:
        """What the results depend on."""
        programs = [""] * len(self.sweep)
        for structure in self.structures:
            digest = structure.digest()
            for place in structure.group.places:
                programs[place] = digest
        return {
            "kind": kind,
            "members": [described(member) for member in self.sweep],
            "keys": np.asarray(jax.random.key_data(self.keys)).tolist(),
            "metrics": arrays_by_path(self.structures[0].metrics, "metric"),
            "programs": programs,
        }

    def _check_widths(self, widths: Sequence[int], chunk: int | None) -> None:
        """Raise an error if a folder that was begun with some widths can't be continued with them."""
        fact = f"The folder was begun with {widths} members at a time"
        if chunk is not None and any(width > self.where.rounded(chunk) for width in widths):
            raise ValueError(f"{fact}, and `chunk={chunk}` is another number. Leave it out to go on.")
        if any(width % self.where.size for width in widths):
            raise ValueError(
                f"{fact}, which {self.where.size} devices can't share equally. Go on with the number of devices that "
                f"it was begun with, by `devices=`."
            )

    def _width(self, structure: Structure, chunk: int | None, share: float, budget: float) -> int:
        """How many members of a structure are trained at a time."""
        if chunk is not None:
            check_integer("sweeps.run", "chunk", chunk)
        label, members = structure.group.label, len(structure.group.members)
        most = members if chunk is not None else math.ceil(share * members)
        width = fitting(structure.needed, most, self.where.rounded, chunk, budget)
        if width < most:
            size, copies = size_text(structure.needed(width)), -members % width
            padding = f", and {copies} copies to fill the last chunk" if copies else ""
            self.bar.say(f"{label}: {width} of {members} members at a time, {size} per device{padding}.")
        return width

    def lanes(self) -> list[list[Lane]]:
        """The lanes of each structure, before the first segment."""
        pairs = zip(self.structures, self.widths, strict=True)
        return [lanes(structure, structure.group.places, structure.group.members, width) for structure, width in pairs]

    def train(self, group: Mapping[str, Lane], first: int, last: int) -> None:
        """Train lanes, by name, from segment `first` up to `last`, and forget the carries from which they continued."""
        for name, lane in group.items():
            self.train_lane(name, lane, first, last)
            if len(group) > 1:
                lane.leave()
        # Only after the training, since a search that is killed during it resumes from them.
        for name, segment in self._last_carries:
            self.folder.forget(name, segment)
        self._last_carries = [(name, last - 1) for name in group]

    def train_lane(self, name: str, lane: Lane, first: int, last: int) -> None:
        """Train a lane from segment `first` up to `last`, without the segments that the folder has."""
        finished = min(self.folder.finished(name, first), last)
        for segment in range(first, finished):
            if segment < finished - 1:
                self.folder.forget(name, segment)  # left by a process that was killed before it did
            self._record(lane, segment, self.folder.metrics(name, segment, [x.dtype for x in self.metrics]))
        if finished > first:
            lane.begin = functools.partial(self.folder.carry, name, finished - 1, lane.template())
        for segment in range(finished, last):
            if (self.ends[lane.places] <= segment).all():
                self.bar.advance(len(lane.places) * (last - segment))
                break
            metrics = lane.advance()
            self._record(lane, segment, metrics)
            # Before the segment is written: after a kill between the two, the hooks get it again, and miss nothing.
            self._call_hooks(lane, segment)
            self.folder.write(name, segment, metrics, lane.current())
            if segment > first:
                self.folder.forget(name, segment - 1)

    def _record(self, lane: Lane, segment: int, metrics: Sequence[np.ndarray]) -> None:
        goes_on = self.ends[lane.places] > segment
        places = np.array(lane.places)[goes_on]
        for all_of_them, x in zip(self.metrics, metrics, strict=True):
            all_of_them[places, :, segment] = x[goes_on]
        self.segments[places] = segment + 1
        self.bar.advance(len(lane.places))

    def _call_hooks(self, lane: Lane, segment: int) -> None:
        """Call the hooks, in the first process, and note the members that they stop."""
        if not self.hooks.hooks:
            return
        stopped = self.hooks(self._rows(lane, segment)) if jax.process_index() == 0 else set()
        is_stopped = np.isin(np.arange(len(self.sweep)), list(stopped))
        if jax.process_count() > 1:
            is_stopped = multihost_utils.broadcast_one_to_all(is_stopped)
        if is_stopped.any():
            self.ends[is_stopped] = segment + 1
            early = np.flatnonzero(self.ends < self.total).tolist()
            self.folder.set_note("stopped", {member: int(self.ends[member]) for member in early})

    @functools.cached_property
    def _table(self) -> list[dict[str, Any]]:
        return self.sweep.table()

    def _rows(self, lane: Lane, segment: int) -> list[Row]:
        """What the hooks get: the runs of a lane that are not stopped."""
        rows: list[Row] = []
        for member in lane.places:
            if self.ends[member] > segment:
                changing = {name: x[member] for name, x in self.history.items()}
                values = {name: x[segment].item() for name, x in changing.items()}
                metrics = {name: x[member] for name, x in zip(self.names, self.metrics, strict=True)}
                metrics |= {f"hyperparameters.{name}": x[None] for name, x in changing.items()}
                rows += rows_of(int(member), segment, self._table[member] | values, metrics)
        return rows

    def save_table(self, results: Results, finished: np.ndarray | None = None) -> None:
        """Write the table of the members that are finished, by default of all, to the folder."""
        self.folder.write_text("results.csv", csv_of(results, finished))

    def results(self) -> Results:
        """The results so far."""
        return self.results_of(self.sweep, self.metrics, self.segments)

    def results_of(self, sweep: Sweep, metrics: Sequence[np.ndarray], segments: np.ndarray, **more: Any) -> Results:
        """The results of any members, from the leaves of their metrics, `[member, seed, segment]`."""
        is_whole = in_segments(self.training) is None
        return Results(
            sweep=sweep,
            metrics=self.treedef.unflatten([x[:, :, 0] for x in metrics] if is_whole else metrics),
            diverged=_diverged(metrics, segments),
            segments=segments.copy(),
            keys=self.keys,
            chunk=tuple(self.widths),
            total=self.total,
            **more,
        )


def _diverged(metrics: Sequence[np.ndarray], segments: np.ndarray) -> np.ndarray:
    """Whether any metric of a run is infinite or NaN in the segments that it was trained for, `[member, seed]`."""
    shape = metrics[0].shape[:3]
    bad = np.zeros(shape, bool)
    for x in metrics:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            bad |= ~np.isfinite(x).reshape(*shape, -1).all(axis=3)
    is_trained = np.arange(metrics[0].shape[2]) < segments[:, None, None]
    return np.asarray(np.any(bad & is_trained, axis=2))


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


def blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array for metrics: NaN until they are there, or zero for integers."""
    return np.full(shape, jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def check_training(name: str, training: Any, segments: int) -> None:
    """Raise an error if the training can't be called, or can't be cut into segments."""
    if (trainable := in_segments(training)) is not None:
        check_arguments("start", trainable.start, "start(optimizer, key)")
        check_arguments("advance", trainable.advance, "advance(optimizer, carry)")
        return
    if not callable(training) or isinstance(training, AbstractTransform):
        raise TypeError(
            f"`{name}` needs the training as a function, `train(optimizer, key)`, or as a "
            f"`sweeps.Trainable(start, advance)`; got {training!r}."
        )
    if segments != 1:
        raise ValueError(
            f"`{name}(segments={segments})` needs a training that can be cut into segments: "
            f"`sweeps.Trainable(start, advance)` in place of a function."
        )
    check_arguments("train", training, "train(optimizer, key)")


def run(
    sweep: Sweep | Members | AbstractTransform,
    train: Train | Trainable,
    *,
    seeds: int = 1,
    key: PRNGKeyArray | None = None,
    segments: int = 1,
    chunk: int | None = None,
    devices: Any = None,
    memory: float | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
    on_segment: Hook | Sequence[Hook] | None = None,
) -> Results:
    """Train every member of a sweep with every seed, and return what the training returned.

        results = sweeps.run(sweep, train, seeds=3, key=jax.random.key(0))
        optimizer, row = results.best("loss")

    `train(optimizer, key)` is an ordinary function for one optimizer, which returns metrics: any pytree of arrays. It
    is traced once per structure of the sweep and mapped over members and seeds; all members get the same keys. For the
    first structure, it is traced a second time, to detect whether it depends on anything other than its arguments.

    Args:
        sweep: a sweep, a list of optimizers, or one optimizer.
        train: `train(optimizer, key)`, or a `Trainable`, which is trained in segments.
        seeds: the number of seeds.
        key: random key, which is split into one per seed; by default `jax.random.key(0)`. A key of `rbg` draws
            different numbers in a batch than alone.
        segments: the number of segments of a `Trainable`.
        chunk: the largest number of members to train at a time; the chunks are of equal size. By default, as many as
            fit in the memory of the devices, according to the compiler and the devices.
        devices: the devices over which the members are spread, or how many; by default all of `jax.devices()`, also
            those of the other processes of a `jax.distributed` job.
        memory: the bytes that may be used on each device; by default 90 % of what is free.
        folder: a folder, to which finished members and segments are written. If it exists, the sweep resumes where it
            stopped, with the same results as an uninterrupted one. A folder of a different sweep is refused, also if
            the code of `train` or the data that it closes over have changed; the results of host callbacks aren't
            compared.
        progress: whether to show a progress bar, if tqdm is installed, and the chosen `chunk`.
        on_segment: a function, or a list of functions, called after each segment of a chunk with a list of `Row`, one
            for each member and seed: one of `sweeps.writers`, or your own. It may return the numbers of members to
            stop; their metrics are NaN (zero for integers) from then on, and `results.segments` says when they ended.
            Segments that are read from the folder are not repeated, except one that was being written when the process
            was killed. In a `jax.distributed` job, only the first process calls it.

    Raises:
        TypeError: if `train` returns no arrays, or reads a traced value as a Python number.
        ValueError: if the metrics differ between structures, if `train` takes the next batch of an iterator, or if the
            folder is that of another sweep, or in use.
        MemoryError: if `chunk` members, or a single one, need more memory than there is.
    """
    experiment = Experiment(sweep, train, seeds=seeds, key=key, devices=devices, segments=segments)
    return train_all(experiment, Settings(chunk, memory, folder, progress, on_segment))


def train_all(experiment: Experiment, settings: Settings) -> Results:
    """Train all members of an experiment through all segments."""
    with experiment.session("run", settings, work=experiment.total * len(experiment.sweep)):
        for number, lane in enumerate(itertools.chain(*experiment.lanes())):
            experiment.train_lane(f"{number:03d}", lane, 0, experiment.total)
            lane.carry = None  # frees the memory
            experiment.save_table(experiment.results(), experiment.segments == experiment.ends)
    return experiment.results()
