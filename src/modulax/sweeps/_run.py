"""`run`: train all members of a sweep."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import PRNGKeyArray

from ..authoring import AbstractTransform
from ._experiment import Experiment, Settings
from ._hooks import Hook, Hooks
from ._over import Over
from ._results import Results
from ._sweep import Members, Sweep
from ._training import Train, Trainable
from ._workers import workers_of


def run(
    sweep: Sweep | Members | AbstractTransform,
    train: Train | Trainable | Over,
    *,
    seeds: int = 1,
    key: PRNGKeyArray | None = None,
    segments: int = 1,
    data: Any = None,
    chunk: int | None = None,
    devices: Any = None,
    memory: float | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    tags: Mapping[str, Any] | None = None,
    progress: bool = True,
    on_segment: Hook | Sequence[Hook] | None = None,
    executor: Any = None,
) -> Results:
    """Train every member of a sweep with every seed, and return what the training returned.

        results = sweeps.run(sweep, train, seeds=3, key=jax.random.key(0))
        optimizer, row = results.best("loss")

    `train(optimizer, key)` is an ordinary function for one optimizer, which returns metrics: any pytree of arrays. It
    is traced once per structure of the sweep and mapped over members and seeds; all members get the same keys. For the
    first structure, it is traced a second time, to detect whether it depends on anything other than its arguments.

    Args:
        sweep: a sweep, a list of optimizers, or one optimizer.
        train: `train(optimizer, key)`, or a `Trainable`, which is trained in segments; or `over`, for what changes
            shapes.
        seeds: the number of seeds.
        key: random key, which is split into one per seed; by default `jax.random.key(0)`. A key of `rbg` draws
            different numbers in a batch than alone.
        segments: the number of segments of a `Trainable`.
        data: the data of a `Trainable`, which need not fit in the memory: `advance(optimizer, carry, batch)` then gets
            those of its segment, the same for all members and seeds. Give a function of the number of the segment,
            which returns a pytree of arrays; or an iterator with an item for each segment, of grain or torch for
            example. A thread reads each segment once, while the one before is trained, and chunks take turns after
            every segment. With a folder, an iterator must have a cursor, which the folder keeps.
        chunk: the largest number of members to train at a time; the chunks are of equal size. By default, as many as
            fit in the memory of the devices, according to the compiler and the devices.
        devices: the devices over which the members are spread, or how many; by default all of `jax.devices()`, also
            those of the other processes of a `jax.distributed` job.
        memory: the bytes that may be used on each device; by default 90 % of what is free.
        folder: a folder of runs, to which finished segments are written. Only the runs and segments that it lacks are
            trained: a sweep that was killed resumes where it stopped, with bitwise identical results, and one with more
            members, seeds or segments trains what is new. A folder of another training is refused, if its code or the
            data that it closes over have changed; the results of host callbacks aren't compared.
        tags: what the folder notes of the runs, such as `{"task": "digits"}`, for `sweeps.load`; later calls keep it.
        progress: whether to show a progress bar, if tqdm is installed, and the chosen `chunk`.
        on_segment: a function, or a list of functions, called after each segment of a chunk with a list of `Row`, one
            for each member and seed: one of `sweeps.writers`, or your own. It may return the numbers of members to
            stop; their metrics are NaN (zero for integers) from then on, and `results.segments` says when they ended.
            A folder notes which runs were stopped: no later sweep trains them further, unless `stopped` in its
            `sweep.json` is emptied. Segments that are read from the folder are not repeated, except one that was being
            written when the process was killed. In a `jax.distributed` job, only the first process calls it.
        executor: whatever has `submit(function, *arguments)`, which returns a future: Dask's `client.get_executor()`, a
            process pool, `submitit.AutoExecutor`. Its workers train the chunks, with bitwise the results of this
            process; each has an equal part of the members unless `chunk` is given. `devices` is then a number of
            devices of each worker, and `memory` is that of a worker. A task is a chunk with its next segment, so that
            folder and hooks are as without an executor; with neither, it is a chunk with all segments. What a lost
            worker had is trained again. Requires cloudpickle.

    Raises:
        TypeError: if `train` returns no arrays, or reads a traced value as a Python number; with `executor`, if it
            refers to something that can't be pickled.
        RuntimeError: if the executor takes no more tasks, as a process pool does after a worker died.
        ValueError: if the metrics differ between structures, if `train` takes the next batch of an iterator, if `data`
            ends, changes its shapes or can't be resumed, or if the folder is that of another training, or in use.
        MemoryError: if `chunk` members, or a single one, need more memory than there is.
    """
    workers, here = workers_of(executor, devices, memory)
    experiment = Experiment(sweep, train, seeds=seeds, key=key, devices=here, segments=segments, data=data)
    return train_all(experiment, Settings(chunk, memory, folder, tags, progress, Hooks(on_segment), workers))


def train_all(experiment: Experiment, settings: Settings) -> Results:
    """Train all members of an experiment through all segments."""
    with experiment.session("run", settings, work=experiment.total * len(experiment.sweep)):
        experiment.train([*range(len(experiment.sweep))], experiment.total)
    return experiment.results()
