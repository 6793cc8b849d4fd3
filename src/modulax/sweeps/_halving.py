"""Successive halving: train all members a little, keep the best, train these longer, and so on."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from .._plugin.arguments import check_integer
from ._experiment import Experiment, Settings
from ._hooks import Hook, Hooks
from ._over import Over
from ._results import Results
from ._sweep import Members, Sweep
from ._training import Trainable
from ._workers import workers_of


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
