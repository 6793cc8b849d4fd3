"""`run`: train all members of a sweep."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PRNGKeyArray

from .._protocol.transform import AbstractTransform
from .._support.checks import check_integer
from .._support.keys import is_key_data, is_typed_key
from ..tree._paths import dotted
from ._description import described
from ._folder import Folder
from ._memory import budget_of, fitting, size_text
from ._population import Lane, lanes, structures
from ._progress import Progress
from ._results import Results, csv_of, has_diverged
from ._sweep import Members, Sweep, as_sweep
from ._training import Train, Trainable, check_arguments, in_segments, placement


class Experiment:
    """A sweep with everything that its training needs: traced programs, keys, devices, metrics so far.

    `run` and the searches share it. Members are trained in lanes; `record` stores the metrics of a lane and segment.

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
        seeds: int,
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
        shape = (len(self.sweep), seeds) if own_keys else (seeds,)
        self.key = checked_key(name, key)
        self.keys = jax.random.split(self.key, shape)
        self.where = placement(devices)
        self.structures = structures(training, self.sweep.groups, self.keys, self.where, own_keys=own_keys)
        leaves, self.treedef = jtu.tree_flatten(self.structures[0].metrics)
        self.dtypes = [x.dtype for x in leaves]
        shape = (len(self.sweep), seeds, segments)
        self.metrics = [blank((*shape, *x.shape), x.dtype) for x in leaves]
        self.segments = np.zeros(len(self.sweep), int)
        self.widths: list[int] = []

    def describe(self, kind: str, **more: Any) -> dict[str, Any]:
        """A description for the folder: two sweeps are the same if theirs are equal."""
        found = jtu.tree_leaves_with_path(self.structures[0].metrics)
        return {
            "kind": kind,
            "members": [described(member) for member in self.sweep],
            "keys": np.asarray(jax.random.key_data(self.keys)).tolist(),
            "metrics": {dotted(path) or "metric": f"{x.dtype}{list(x.shape)}" for path, x in found},
            **more,
        }

    def choose_widths(
        self, folder: Folder, chunk: int | None, memory: float | int | None, progress: Progress, share: float = 1
    ) -> None:
        """Decide how many members of each structure are trained at a time; as before, if the folder was begun.

        Without `chunk`, it is a share of the members, or fewer, if these don't fit into the memory.
        """
        # Before the folder is read, where another process may be further: all must take part.
        budget = budget_of(list(self.where.mesh.devices.flat), memory)
        known = folder.note("chunk")
        if known is not None and (chunk is None or folder.has_metrics()):
            if chunk is not None and any(w != min(w, self.where.rounded(chunk)) for w in known):
                raise ValueError(
                    f"The folder was begun with {known} members at a time, and `chunk={chunk}` is another number. "
                    f"Leave it out to go on."
                )
            if any(width % self.where.size for width in known):
                raise ValueError(
                    f"The folder was begun with {known} members at a time, which {self.where.size} devices can't "
                    f"share equally. Go on with the number of devices that it was begun with, by `devices=`."
                )
            self.widths = list(known)
            return
        if chunk is not None:
            check_integer("sweeps.run", "chunk", chunk)
        for structure in self.structures:
            n = len(structure.group.members)
            wanted = n if chunk is not None else math.ceil(share * n)
            width = fitting(structure.needed, wanted, self.where.rounded, chunk, budget)
            self.widths.append(width)
            if width < wanted:
                progress.say(
                    f"{structure.group.label}: {width} of {n} members at a time, {size_text(structure.needed(width))} "
                    f"per device."
                )
        folder.set_note("chunk", self.widths)

    def record(self, lane: Lane, segment: int, metrics: Sequence[np.ndarray]) -> None:
        """Store the metrics of a lane and segment."""
        for all_of_them, x in zip(self.metrics, metrics, strict=True):
            all_of_them[lane.places, :, segment] = x
        self.segments[lane.places] = segment + 1

    def train(self, lane: Lane, name: str, first: int, last: int, folder: Folder, progress: Progress) -> None:
        """Train a lane from segment `first` up to `last`, without the segments that the folder has."""
        finished = min(folder.finished(name, first), last)
        for segment in range(first, finished):
            self.record(lane, segment, folder.metrics(name, segment, self.dtypes))
        progress.advance(len(lane.places) * (finished - first))
        if finished > first:
            lane.begin = functools.partial(folder.carry, name, finished - 1, lane.template())
        for segment in range(finished, last):
            metrics = lane.advance()
            self.record(lane, segment, metrics)
            folder.write(name, segment, metrics, lane.current())
            if segment > first:
                folder.forget(name, segment - 1)
            progress.advance(len(lane.places))

    def results(self, sweep: Sweep | None = None, **more: Any) -> Results:
        """The results so far."""
        return self.results_of(self.sweep if sweep is None else sweep, self.metrics, self.segments, **more)

    def results_of(
        self,
        sweep: Sweep,
        metrics: Sequence[np.ndarray],
        segments: np.ndarray,
        *,
        chunk: Sequence[int] | None = None,
        **more: Any,
    ) -> Results:
        """The results of any members, from the leaves of their metrics, `[member, seed, segment]`."""
        diverged = np.zeros(metrics[0].shape[:2], bool)
        for n in np.unique(segments):
            if n:
                rows = segments == n
                diverged[rows] = has_diverged([x[rows][:, :, :n] for x in metrics])
        is_whole = in_segments(self.training) is None
        return Results(
            sweep=sweep,
            metrics=self.treedef.unflatten([x[:, :, 0] for x in metrics] if is_whole else metrics),
            diverged=diverged,
            segments=segments.copy(),
            keys=self.keys,
            chunk=tuple(self.widths if chunk is None else chunk),
            total=self.total,
            **more,
        )


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


def check_metric(experiment: Experiment, metric: str | None) -> None:
    """Raise an error if there is no such metric to rank the members by, before anything is trained."""
    experiment.results().scores(metric)


def check_training(name: str, training: Any, segments: int) -> None:
    """Raise an error if the training can't be called, or can't be cut into segments."""
    if (trainable := in_segments(training)) is not None:
        check_arguments("start", trainable.start, "start(optimizer, key)")
        check_arguments("advance", trainable.advance, "advance(optimizer, carry)")
        return
    if not callable(training):
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
) -> Results:
    """Train every member of a sweep with every seed, and return what the training returned.

        results = sweeps.run(sweep, train, seeds=3, key=jax.random.key(0))
        optimizer, row = results.best("loss")

    `train(optimizer, key)` is an ordinary function for one optimizer, which returns metrics: any pytree of arrays. It
    is traced once per structure of the sweep and mapped over members and seeds; all members get the same keys.

    Args:
        sweep: a sweep, a list of optimizers, or one optimizer.
        train: `train(optimizer, key)`, or a `Trainable`, which is trained in segments.
        seeds: the number of seeds.
        key: random key, which is split into one per seed; by default `jax.random.key(0)`.
        segments: the number of segments of a `Trainable`.
        chunk: how many members are trained at a time. By default, as many as the memory of the devices holds, which
            the compiler and the devices tell.
        devices: the devices over which the members are spread, or how many; by default all of `jax.devices()`, also
            those of the other processes of a `jax.distributed` job.
        memory: the bytes that may be used on each device; by default 90 % of what is free.
        folder: a folder, to which finished members and segments are written. If it is there, the sweep goes on where
            it stopped, with the same results as an uninterrupted one. A folder of another sweep is refused; the code of
            `train` and its data are not compared.
        progress: whether to show a progress bar, if tqdm is installed, and the chosen `chunk`.

    Raises:
        TypeError: if `train` returns no arrays, or reads a traced value as a Python number.
        ValueError: if the metrics differ between structures, or the folder is that of another sweep.
        MemoryError: if `chunk` members, or a single one, need more memory than there is.
    """
    experiment = Experiment(sweep, train, seeds=seeds, key=key, devices=devices, segments=segments)
    return train_all(experiment, chunk, memory, folder, progress)


def train_all(
    experiment: Experiment,
    chunk: int | None,
    memory: float | int | None,
    folder: str | os.PathLike[str] | None,
    progress: bool,
) -> Results:
    """Train all members of an experiment through all segments."""
    store = Folder(folder, experiment.describe("run"))
    with Progress(progress) as bar:
        experiment.choose_widths(store, chunk, memory, bar)
        chunks = [
            lane
            for structure, width in zip(experiment.structures, experiment.widths, strict=True)
            for lane in lanes(structure, structure.group.places, structure.group.members, width)
        ]
        bar.total(experiment.total * len(experiment.sweep))
        for number, lane in enumerate(chunks):
            experiment.train(lane, f"{number:03d}", 0, experiment.total, store, bar)
            lane.carry = None  # frees the memory
            store.write_text("results.csv", csv_of(experiment.results(), experiment.segments == experiment.total))
    return experiment.results()
