"""`run`: train all members of a sweep; `halving`: train the best ones longer, by successive halving."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer
from ..authoring import AbstractTransform
from ._experiment import Experiment, Settings
from ._hooks import Hook, Hooks
from ._over import Over
from ._results import Results
from ._sweep import Members, Sweep
from ._tasks import workers_of
from ._training import Train, Trainable


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


def halving(
    sweep: Sweep | Members,
    trainable: Trainable | Over,
    metric: str | None = None,
    *,
    rungs: int | Sequence[int] | None = None,
    factor: int = 3,
    mode: str = "min",
    reduce: str = "mean",
    seeds: int = 1,
    key: PRNGKeyArray | None = None,
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
    """Search by successive halving: after each rung, only the best `1 / factor` of the members are trained further.

        results = sweeps.halving(sweep, trainable, "loss", rungs=[3, 9, 27])
        optimizer, row = results.best("loss")

    The remaining members are packed together, so the work shrinks with their number: 81 members with the rungs 3, 9, 27
    take 567 segments, and 2187 in `run`. A member that diverged ranks last. Members of different classes are ranked
    together.

    An early rung is cheap, but its ranking says little about the final one. Put the first rung after the warm-up, and
    at a ninth of the training or later. The last few members are close to each other: train them again with new seeds.

    References:
        Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016.
        https://arxiv.org/abs/1502.07943

    Args:
        sweep: a sweep, or a list of optimizers.
        trainable: the training in segments; or `over`, which ranks members of all shapes together.
        metric: the name of the metric that ranks the members; may be left out if there is only one.
        rungs: the numbers of segments after which members are dropped, in rising order; the last is the end of the
            training. A number stands for so many powers of `factor`, from 1. By default, the first three powers above
            1, which are 3, 9 and 27, so that the first rung is at a ninth of the training.
        factor: the fraction of the members that a rung keeps is `1 / factor`, rounded up.
        mode: `"min"` if small values are good, `"max"` if large ones are.
        reduce: `"mean"`, `"median"`, `"min"` or `"max"` over the seeds.
        seeds: the number of seeds.
        key: random key, as in `run`.
        data: as in `run`.
        chunk: how many members are trained at a time. By default `1 / factor**2` of the members, or fewer if these
            don't fit into the memory, so that one program serves the first three rungs.
        devices: as in `run`.
        memory: as in `run`.
        folder: as in `run`; a search that was interrupted goes on. Its runs are those of `run`, so that it trains no
            segment that is there, and a later sweep goes on with the members that were dropped.
        tags: as in `run`.
        progress: as in `run`.
        on_segment: as in `run`; a member that it stops is dropped at the next rung.
        executor: as in `run`; each rung waits for all of its tasks.

    Returns:
        The results of all members. The metrics of a member are NaN (zero for integers) after the segment at which it
        was dropped; `results.segments` has the number of segments of each.

    Raises:
        ValueError: if the rungs don't rise, or for the reasons of `run`.
    """
    check_integer("sweeps.halving", "factor", factor, least=2)
    ends = _ends(rungs, factor)
    workers, here = workers_of(executor, devices, memory)
    experiment = Experiment(
        sweep, trainable, seeds=seeds, key=key, devices=here, segments=ends[-1], data=data, name="sweeps.halving"
    )
    experiment.results().scores(metric, mode=mode, reduce=reduce)  # an error before anything is trained
    work = _work(ends, len(experiment.sweep), factor)
    settings = Settings(chunk, memory, folder, tags, progress, Hooks(on_segment), workers)
    with experiment.session("halving", settings, work, share=1 / factor**2):
        alive = np.arange(len(experiment.sweep))
        for end in ends:
            experiment.train(alive.tolist(), end, keeps=True)
            costs = experiment.results()._finite_costs(metric, mode=mode, reduce=reduce)
            left = alive[experiment.ends[alive] > end]  # a stopped member takes the place of no other one
            alive = np.sort(left[np.argsort(costs[left], kind="stable")[: math.ceil(len(alive) / factor)]])
    return experiment.results()


def _ends(rungs: int | Sequence[int] | None, factor: int) -> list[int]:
    """The numbers of segments after which members are dropped, and the last one."""
    if rungs is None:
        return [factor, factor**2, factor**3]
    if isinstance(rungs, int):
        check_integer("sweeps.halving", "rungs", rungs)
        return [factor**i for i in range(rungs)]
    ends = [int(end) for end in rungs]
    if not ends or any(a >= b for a, b in itertools.pairwise([0, *ends])):
        raise ValueError(
            f"`sweeps.halving(rungs={list(rungs)!r})` must rise from at least 1, such as `rungs=[3, 9, 27]`: the "
            f"numbers of segments after which members are dropped, and the last one."
        )
    return ends


def _work(ends: Sequence[int], members: int, factor: int) -> int:
    """How many segments all members take together."""
    total = 0
    for first, last in itertools.pairwise([0, *ends]):
        total += members * (last - first)
        members = math.ceil(members / factor)
    return total
